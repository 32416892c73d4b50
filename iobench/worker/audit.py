"""Whether one pipeline reads every sample once: small epochs, judged by what comes out of them.

    python -m iobench.worker.audit SUBJECT.json

Run by ``iobench audit`` in the Python of the pipeline's stack.  Prints lines of JSON: ``versions``,
then ``checks``, a name -> "" (kept), ``n/a: ...`` (the loader promises no such thing), ``note:
...``, or what is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

import numpy as np

from iobench.core import dataset as datasets
from iobench.core import registry, transforms
from iobench.core.errors import BackendUnavailable, IobenchError
from iobench.core.order import SEQUENCES, sample_order
from iobench.core.protocols import LoadRequest
from iobench.host.fingerprint import version_of

BATCH, WORKERS, SEED = 4, 2, 5
#: Seconds after which an epoch hangs; of the check ``killed`` fewer: some libraries wait for ever.
LIMIT_S, KILLED_S = 60.0, 30.0
#: Batches after which a worker is killed, each in an epoch of its own.
STRIKES = (0, 1)
#: (ids, labels) of each batch of an epoch.
Pairs = List[Tuple[np.ndarray, np.ndarray]]
#: Grey levels by which a value may differ from the reference pixels.
TOLERANCE = 2.0
#: Orders to ask for, the first that the loader can follow: of another sequence in each epoch.
ORDERS = ("shuffled", "shards:8", "stored")
#: Loaders whose channels are blue, green, red.
BLUE_FIRST = ("native",)


@dataclasses.dataclass(frozen=True)
class Subject:
    """One pipeline, and two datasets of pictures of 224 x 224.

    ``damaged``: the same as ``root``, but one sample, ``broken``, is no JPEG.  ``layout``: what the
    form's folder adds to its name.
    """

    loader: str
    form: str
    decoder: str
    root: str
    damaged: str
    broken: int
    layout: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def backend(self) -> Any:
        """The loader's."""
        return registry.load("loaders", self.loader)

    @property
    def order(self) -> str:
        """The order asked for."""
        able = self.backend.orders.get(self.form, SEQUENCES)
        return next(order for order in ORDERS if order.partition(":")[0] in able)

    @property
    def sharing(self) -> str:
        """How ranks share the data, where several can: as is usual, or as the loader can."""
        ways = self.backend.sharings.get(self.form) or {LoadRequest.sharing}
        return LoadRequest.sharing if LoadRequest.sharing in ways else min(ways)

    def request(self, root: str = "", **changes: Any) -> LoadRequest:
        """Return what the loader is asked for."""
        found = datasets.locate(Path(root or self.root))
        index = datasets.load_index(found)
        name, folder = self.form.partition("-")[0], self.form + self.layout
        asked = {"rank": 0, "world_size": 1, "epoch": 0, "sharing": self.sharing, **changes}
        ids = sample_order(found.samples, self.order, seed=SEED, batch=BATCH, **asked)
        return LoadRequest(
            dataset=found,
            format_name=name,
            format=registry.load("formats", name).make(),
            root=datasets.form_root(found, folder),
            ids=ids,
            labels=index.labels,
            sizes=datasets.stored_sizes(found, folder, index.sizes),
            batch=BATCH,
            workers=self.backend.threads or WORKERS,
            order=self.order,
            transform="crop224",
            decoder=self.decoder,
            seed=SEED,
            **asked,
        )

    def open(self, request: LoadRequest) -> Any:
        """Make the loader."""
        return self.backend.make(request, **self.options)

    def ids_and_labels(self, request: LoadRequest) -> Pairs:
        """Return those of each batch of an epoch, as they come."""
        loader = self.open(request)
        try:
            return [(np.array(batch.ids), np.array(batch.labels)) for batch in loader.batches()]
        finally:
            loader.close()

    def ids(self, request: LoadRequest) -> np.ndarray:
        """Return the ids of an epoch, as they come."""
        return np.concatenate([ids for ids, _ in self.ids_and_labels(request)])

    @functools.cached_property
    def plain(self) -> Pairs:
        """Ids and labels of the first epoch's batches, which several checks are about."""
        return self.ids_and_labels(self.request())


def once(subject: Subject) -> str:
    """Every id of an epoch comes once, in whole batches, with its own label."""
    request = subject.request()
    ids, labels = (np.concatenate(column) for column in zip(*subject.plain))
    if any(len(each) != BATCH for each, _ in subject.plain):
        return "batches are not whole"
    if not np.array_equal(labels, request.labels[ids]):
        return "a label is another sample's"
    return _same(ids, request.ids)


def ends(subject: Subject) -> str:
    """Of a number of samples that is no whole number of batches, the rest alone is left out."""
    samples = datasets.locate(Path(subject.root)).samples
    count = sum(len(ids) for ids, _ in subject.plain)
    rest = samples % BATCH
    if count != samples - rest:
        return f"{count} of {samples} samples in batches of {BATCH}"
    return f"note: drops {rest} of {samples}"


def reshuffled(subject: Subject) -> str:
    """The next epoch has the same samples in another order."""
    if subject.order == "stored":
        return "n/a: it follows the stored order alone"
    request = subject.request(epoch=1)
    first, second = np.concatenate([ids for ids, _ in subject.plain]), subject.ids(request)
    if np.array_equal(first, second):
        return "the same order in both epochs"
    return _same(second, request.ids)


def ranks(subject: Subject) -> str:
    """Two ranks have equal shares, and no sample in common."""
    ways = subject.backend.sharings.get(subject.form)
    if ways is not None and not ways:
        return "n/a: it serves one rank"
    shares = [subject.ids(subject.request(rank=rank, world_size=2)) for rank in (0, 1)]
    if len(shares[0]) != len(shares[1]):
        return f"{len(shares[0])} and {len(shares[1])} samples"
    common = set(shares[0].tolist()) & set(shares[1].tolist())
    return f"{len(common)} samples on both ranks" if common else ""


def errors(subject: Subject) -> str:
    """A sample that cannot be decoded ends the epoch with an error that names it."""
    if "-" in subject.form:
        return "n/a: stored pixels are not decoded"
    try:
        count = len(subject.ids(subject.request(subject.damaged)))
    except IobenchError as error:
        named = f"sample {subject.broken} " in str(error)
        return "" if named else f"note: the error does not name the sample: {error}"
    return f"no error; {count} samples came"


def killed(subject: Subject) -> str:
    """An epoch of which a worker is killed ends with an error, or whole; nothing hangs."""
    request = subject.request()
    loaders = [subject.open(request) for _ in STRIKES]
    if not all(getattr(loader, "processes", list)() for loader in loaders):
        for loader in loaders:
            loader.close()
        return "n/a: it has no process of its own"
    with ThreadPoolExecutor(len(loaders)) as pool:  # each may wait for seconds
        found = list(pool.map(lambda *struck: _struck(request, *struck), loaders, STRIKES))
    return "; ".join(filter(None, found))


def _struck(request: LoadRequest, loader: Any, after: int) -> str:
    """Kill a worker after so many batches; return what was lost without an error."""
    worker = loader.processes()[0]
    ids = [np.array([], np.int64)]
    if not after:
        os.kill(worker, signal.SIGKILL)
    try:
        for batch in loader.batches():
            ids.append(np.array(batch.ids))
            if len(ids) == 1 + after:
                os.kill(worker, signal.SIGKILL)
    except Exception:  # noqa: BLE001 - any library's own
        return ""
    finally:
        loader.close()
    lost = _same(np.concatenate(ids), request.ids)
    return lost and f"no error, killed after {after} batches: {lost}"


def pixels(subject: Subject) -> str:
    """Every value is within the tolerance of the reference, mirrored or not."""
    request = subject.request()
    chosen = transforms.transform(request.transform)
    std, mean = (np.array(v, np.float32)[:, None, None] for v in (chosen.std, chosen.mean))
    worst = 0.0
    loader = subject.open(request)
    try:
        for batch in loader.batches():
            data = batch.data.cpu() if hasattr(batch.data, "cpu") else batch.data
            for sample, row in zip(batch.ids.tolist(), np.asarray(data)):
                seen = row[::-1] if subject.loader in BLUE_FIRST else row
                expected = _reference(request, sample)
                gaps = [np.abs(seen * std + mean - expected[..., ::way]).max() for way in (1, -1)]
                worst = max(worst, float(min(gaps)))
    finally:
        loader.close()
    return "" if worst <= TOLERANCE else f"{worst:.1f} grey levels from the reference"


def _reference(request: LoadRequest, sample: int) -> np.ndarray:
    index = datasets.load_index(request.dataset)
    data = Path(request.dataset.jpeg_root, index.files[sample]).read_bytes()
    return transforms.decode(data).transpose(2, 0, 1).astype(np.float32)


def _same(found: np.ndarray, wanted: np.ndarray) -> str:
    """Return how two multisets of ids differ, "" where they are the same."""
    if np.array_equal(np.sort(found), np.sort(wanted)):
        return ""
    lost = set(wanted.tolist()) - set(found.tolist())
    return f"{len(lost)} samples lost, {len(found) - len(set(found.tolist()))} repeated"


#: Name -> the check, in the order of the table.
CHECKS: Dict[str, Callable[[Subject], str]] = {
    "once": once,
    "ends": ends,
    "reshuffled": reshuffled,
    "ranks": ranks,
    "pixels": pixels,
    "killed": killed,
    "errors": errors,  # the last: Caffe ends its process
}


def answers(subject: Subject) -> Iterator[Dict[str, str]]:
    """Yield check -> answer, one by one; one that hangs says so, and is the last."""
    for name, check in CHECKS.items():
        done: List[str] = []
        thread = threading.Thread(target=_into, args=(check, subject, done), daemon=True)
        thread.start()
        limit_s = KILLED_S if check is killed else LIMIT_S
        thread.join(limit_s)
        yield {name: done[0] if done else f"hangs (more than {limit_s:.0f} s)"}
        if not done:
            return


def versions(subject: Subject) -> Dict[str, str]:
    """Return distribution -> version of what the pipeline's members require."""
    members = {"loaders": subject.loader, "formats": subject.form.partition("-")[0]}
    if subject.backend.decodes:
        members["decoders"] = subject.decoder
    stack = subject.backend.stack or registry.DEFAULT_STACK
    known = {m: d for each in registry.libraries(stack, **members) for m, d in each.items()}
    modules = [m for axis, name in members.items() for m in registry.load(axis, name).requires]
    return {known.get(m, m): version_of(known.get(m, m)) for m in modules}


def _into(check: Callable[[Subject], str], subject: Subject, done: List[str]) -> None:
    try:
        done.append(check(subject))
    except BackendUnavailable as error:
        done.append(f"n/a: {error}")
    except Exception as error:  # noqa: BLE001 - any library's own
        done.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def main(argv: List[str]) -> int:
    """Audit the pipeline that the file ``argv[0]`` describes."""
    subject = Subject(**json.loads(Path(argv[0]).read_text()))
    print(json.dumps({"versions": versions(subject)}), flush=True)
    for answer in answers(subject):
        print(json.dumps({"checks": answer}), flush=True)
    os._exit(0)  # what hangs would keep the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
