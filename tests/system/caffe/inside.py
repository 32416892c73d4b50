"""Run by Caffe's own Python (3.9, no pytest): the real loader and trainers, on a made dataset.

``python -m tests.system.caffe.inside FUNCTION '{"argument": ...}'`` prints what it returns, as
JSON; test_caffe.py holds it against what it should be.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from iobench.core import registry, transforms
from iobench.core.cases import Case
from iobench.core.dataset import load_index, locate
from iobench.core.errors import IobenchError
from iobench.core.order import sample_order
from iobench.core.protocols import LoadRequest
from iobench.worker import loop, remote_loader


def request(root: str, form: str, **changes: Any) -> LoadRequest:
    """Return a request for the samples of the dataset at ``root`` in one stored form."""
    dataset = locate(Path(root))
    index = load_index(dataset)
    name = form.partition("-")[0]
    batch, order = int(changes.pop("batch", 4)), str(changes.pop("order", "stored"))
    times = int(changes.pop("times", 1))
    share = {"rank": changes.pop("rank", 0), "world_size": changes.pop("world_size", 1)}
    return LoadRequest(
        dataset=dataset,
        format_name=name,
        format=registry.load("formats", name).make(),
        root=Path(dataset.jpeg_root if form == "jpeg" else f"{root}/{form}"),
        ids=np.tile(sample_order(dataset.samples, order, seed=1, batch=batch, **share), times),
        labels=index.labels,
        sizes=index.sizes,
        batch=batch,
        order=order,
        transform="crop224",
        **changes,
    )


def loader(
    root: str, form: str, options: Dict[str, Any], *, name: str = "native", **changes: Any
) -> Any:
    wanted = request(root, form, **changes)
    if name == "torch":  # it lives in another Python
        case = Case(loader=name, format=wanted.format_name, loader_options=options)
        return remote_loader.RemoteLoader(os.environ[remote_loader.PYTHON], case).open(wanted)
    return registry.load("loaders", name).make(wanted, **options)


def trainer(name: str = "caffe", **options: Any) -> Any:
    return registry.load("trainers", name).make(**options)


def modules(names: List[str]) -> List[str]:
    """Return those that this Python cannot import."""
    return [name for name in names if not registry.importable(name)]


def digests(root: str, form: str, **changes: Any) -> Dict[str, Any]:
    """Return the ids, labels and digests of the untimed twin."""
    made = loader(root, form, {}, stage="read", digest=True, **changes)
    batches = list(made.batches())
    made.close()
    return {
        "ids": [int(i) for b in batches for i in b.ids],
        "labels": [int(i) for b in batches for i in b.labels],
        "digests": [d for b in batches for d in b.digests or ()],
        "expected": [load_index(made._request.dataset).digests[i] for i in made._request.ids],
    }


def crops(root: str, form: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Return where in its image each delivered row was found, and whether it was mirrored."""
    made = loader(root, form, options)
    wanted = made._request
    reader = wanted.format.open(wanted.dataset, wanted.root)
    mean = np.array(transforms.IMAGENET_MEAN, np.float32)
    places = []
    for batch in made.batches():
        for row, sample in zip(batch.data, batch.ids.tolist()):
            pixels = np.rint(row[::-1].transpose(1, 2, 0) + mean)
            places.append(_find(pixels, transforms.decode(reader.read(sample)[0])))
    reader.close()
    made.close()
    return {"places": places}


def _find(piece: np.ndarray, image: np.ndarray) -> Any:
    """Return (top, left, mirrored) of an exact match, None without one."""
    height, width = piece.shape[:2]
    for mirrored in (False, True):
        seen = piece[:, ::-1] if mirrored else piece
        for top in range(image.shape[0] - height + 1):
            for left in range(image.shape[1] - width + 1):
                if image[top, left, 0] == seen[0, 0, 0] and np.array_equal(
                    image[top : top + height, left : left + width], seen
                ):
                    return top, left, mirrored
    return None


def epochs(
    root: str,
    form: str,
    *,
    name: str,
    options: Dict[str, Any],
    count: int,
    batch: int,
    held_out: str,
    times: int = 1,
    **net: Any,
) -> Dict[str, Any]:
    """Train ``count`` epochs; return the share of held-out samples that are given their class.

    ``times``: each epoch goes through the samples so often.
    """
    made = trainer(batch=batch, **net)
    before = _right(made, held_out, batch)
    for epoch in range(count):
        source = loader(root, form, options, name=name, batch=batch, epoch=epoch, times=times)
        loop.measure(source.batches(), made, warmup=1)
        source.close()
    return {"before": before, "after": _right(made, held_out, batch), **made.describe()}


def snapshot(
    root: str, form: str, *, count: int, batch: int, held_out: str, **net: Any
) -> Dict[str, Any]:
    """Train ``count`` epochs by the program; let the trainer judge the weights that it kept."""
    from iobench.backends.caffe import solver
    from iobench.backends.caffe.prototxt import message

    running = solver.running
    keep = message(snapshot_after_train=True, snapshot_prefix=os.path.abspath("kept"))
    solver.running = lambda *a, **k: running(*a, **k).without("snapshot_after_train").plus(keep)
    source = loader(root, form, {}, batch=batch)
    program = trainer("caffe_train", batch=batch, **net)
    program.feed(source, request(root, form, batch=batch, times=count), warmup=1)
    source.close()
    judge = trainer(batch=batch, **net)
    before = _right(judge, held_out, batch)
    (kept,) = Path().glob("kept_iter_*.caffemodel")
    judge._net.copy_from(str(kept))
    return {"before": before, "after": _right(judge, held_out, batch)}


def _right(made: Any, root: str, batch: int) -> float:
    source = loader(root, "jpeg", {"mirror": False}, batch=batch)
    right = seen = 0
    for found in source.batches():
        # in the training phase: a net with dropout does worse than it could
        data = made._give(found)
        made._net._forward(0, made._last)
        del data
        scores = made._net.blobs[made._score].data.reshape(batch, -1)
        right += int((scores.argmax(axis=1) == np.asarray(found.labels)).sum())
        seen += batch
    source.close()
    return right / seen


def program(root: str, form: str, **options: Any) -> Dict[str, Any]:
    """Train one epoch by the program, then replay; return steps and facts of both."""
    made = trainer("caffe_train", **options)
    source = loader(root, form, {}, batch=options["batch"])
    fed = made.feed(source, source._request, warmup=1)
    source.close()
    facts = dict(made.describe())
    replayed = made.replay(source._request, seconds=0.5)
    return {
        "done_s": list(fed.steps.done_s),
        "wait_s": [b - a for a, b in zip(fed.steps.request_s, fed.steps.ready_s)],
        "ids": np.concatenate(fed.ids).tolist(),
        "facts": facts,
        "replayed_s": list(replayed.steps.done_s),
        "replay_facts": dict(made.describe()),
    }


def parameters(names: List[str]) -> Dict[str, int]:
    """Return what Caffe itself counts in each net: all blobs but batch normalisation's."""
    from iobench.backends.caffe import layers, library, nets
    from iobench.backends.caffe.prototxt import render
    from iobench.backends.trainers.caffe import _learned

    caffe = library.load()
    counted = {}
    for name in names:
        path = Path(f"net-{name}.prototxt")
        found, _ = nets.describe(name, layers.memory(1, nets.net(name).shape))
        path.write_text(render(found))
        net = caffe.Net(str(path), caffe.TRAIN)
        counted[name] = sum(int(blob.count) for blob in _learned(net))
    return counted


def memory(root: str) -> Dict[str, Any]:
    """Return by how much the process grew over many batches, each in memory of its own (KiB)."""
    import resource

    made = trainer(batch=4, net="small", classes=4)
    source = loader(root, "jpeg", {})
    first = next(source.batches())
    kept = first._replace(data=np.array(first.data))
    source.close()
    for _ in range(5):
        made.step(kept._replace(data=kept.data.copy()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(60):
        made.step(kept._replace(data=kept.data.copy()))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"grown_kib": grown, "batch_kib": kept.data.nbytes // 1024}


def held(root: str) -> Dict[str, Any]:
    """Return whether a batch that is held after the loader was closed still shows its values."""
    source = loader(root, "jpeg", {})
    batches = source.batches()
    first = next(batches)
    copy = np.array(first.data)
    batches.close()
    source.close()
    return {
        "same": bool(np.array_equal(copy, first.data)),
        "threads": len(os.listdir("/proc/self/task")),
    }


def refused(root: str, form: str, options: Dict[str, Any], **changes: Any) -> str:
    """Return the error that the loader ends with, "" without one."""
    try:
        made = loader(root, form, options, **changes)
        for _ in made.batches():
            pass
    except IobenchError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def solver(root: str, path: str) -> Dict[str, Any]:
    """Train one epoch by a solver of the user's, in process and by the program."""
    made = trainer(batch=4, solver=path)
    source = loader(root, "jpeg", {})
    loop.measure(source.batches(), made, warmup=1)
    source.close()
    by_program = trainer("caffe_train", batch=4, solver=path)
    source = loader(root, "jpeg", {})
    by_program.feed(source, source._request, warmup=1)
    source.close()
    return {"caffe": dict(made.describe()), "caffe_train": dict(by_program.describe())}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
