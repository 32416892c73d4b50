"""Run by a worker's Python, whichever: import the worker side, use it, print what came out as JSON.

    python -m tests.system.caffe.python39_facts DATASET MODULE ...

Standard library, numpy and iobench only; Python 3.9.  test_python39.py compares what two say.
"""

import hashlib
import importlib
import json
import platform
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np

from iobench.core import dataset, order, registry, transforms
from iobench.core.cases import Batch, Dataset
from iobench.core.errors import DatasetError
from iobench.host import fingerprint
from iobench.worker import loop


def stored(found: Dataset) -> Dict[str, str]:
    """Return stored form -> digest of every sample's bytes and label, read by its own Reader."""
    digests = {}
    for form in dataset.forms(found):
        facts = dataset.form_facts(found, form)
        reader = (
            registry.load("formats", facts["format"])
            .make()
            .open(found, dataset.form_root(found, form))
        )
        digests[form] = digest_of([reader.read(i) for i in range(len(reader))])
        reader.close()
    return digests


def digest_of(rows: List[Any]) -> str:
    sha = hashlib.sha256()
    for data, label in rows:
        sha.update(bytes(np.ascontiguousarray(data)) if hasattr(data, "shape") else bytes(data))
        sha.update(b"%d" % int(label))
    return sha.hexdigest()


def decoded(found: Dataset) -> str:
    files = sorted(Path(found.jpeg_root).rglob("*.jp*g"))
    return digest_of([(transforms.decode(file.read_bytes()), 0) for file in files])


def transformed() -> Dict[str, List[float]]:
    """Return transform -> some values of what it makes of a picture of ours."""
    y, x, c = np.ogrid[:300, :400, :3]
    picture = ((y * 3 + x * 2 + c * 40) % 256).astype(np.uint8)
    found = {}
    for name in sorted(transforms.TRANSFORMS):
        transform = transforms.transform(name)
        row = np.empty(transform.shape, np.float32)
        transform.apply(picture, transforms.SampleRandom(1, 2, 3), row)
        found[name] = [float(row.mean(dtype=np.float64)), *map(float, row[:, 5, 7])]
    return found


class World:
    """A clock that only moves when somebody works."""

    now = 100.0

    def clock(self) -> float:
        return self.now

    def step(self, batch: Batch) -> None:
        self.now += 1.0

    def sync(self) -> None:
        pass

    def batches(self, waits: List[float]) -> Iterator[Batch]:
        for i, wait in enumerate(waits):
            self.now += wait
            ids = np.arange(4, dtype=np.int64) + i * 4
            yield Batch(data=None, labels=ids, ids=ids, nbytes=40)


def measured() -> Dict[str, Any]:
    """Return the loop's figures under a fake clock: exact."""
    world = World()
    trainer: Any = world
    steps = loop.measure(
        world.batches([2.0, 0.5, 0.25, 0.25]), trainer, warmup=1, clock=world.clock
    )[0]
    return {
        "steps": [list(steps.request_s), list(steps.ready_s), list(steps.done_s)],
        "warmup": loop.warmup_steps(queue_batches=4, workers=2, steps=50),
    }


def refusal() -> str:
    """Return what decoding of no JPEG says, without the library's own words."""
    try:
        transforms.decode(b"no jpeg")
    except DatasetError as error:
        return str(error).partition("(")[0]
    return ""


def main(argv: List[str]) -> int:
    found = dataset.locate(Path(argv[0]))
    for module in argv[1:]:
        importlib.import_module(module)
    ids = [
        order.sample_order(64, kind, seed=3, epoch=1).tolist()
        for kind in ("stored", "shuffled", "window:8")
    ]
    facts = {
        "exact": {
            "imported": argv[1:],
            "stored": stored(found),
            "decoded": decoded(found),
            "measured": measured(),
            "order": ids,
            "refusal": refusal(),
            "host": fingerprint.collect(Path(found.root))["cpu"],
        },
        "near": transformed(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    json.dump(facts, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
