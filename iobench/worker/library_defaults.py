"""What libraries' own defaults do with the samples of an epoch: each is run, and its ids counted.

    python -m iobench.worker.library_defaults NAME FOLDER

``FOLDER`` holds ``jpeg/<class>/*.jpg``.  None of them is what iobench's loaders do; ``iobench
audit`` lists what was seen, as users of these libraries may have them.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from iobench.host.fingerprint import version_of

RANKS, WORKERS, BATCH = 4, 2, 4


@dataclasses.dataclass(frozen=True)
class Default:
    """A default of a library; ``loader``: iobench's loader in whose Python it runs.

    ``run``: (files of the samples) -> what was seen.  ``instead``: what avoids it.
    """

    name: str
    loader: str
    distribution: str
    run: Callable[[List[Path]], str]
    instead: str


def counted(seen: Sequence[int], samples: int) -> str:
    """Return how often the samples of one epoch came."""
    times = collections.Counter(seen)
    repeated = sum(n - 1 for n in times.values())
    lost = samples - len(times)
    return f"{len(seen)} for {samples} samples: {repeated} repeated, {lost} lost"


def _same_order(files: List[Path]) -> str:
    """Two epochs through a DistributedSampler whose ``set_epoch`` is not called."""
    import torch.utils.data as data

    samplers: List[Any] = [
        data.DistributedSampler(range(len(files)), num_replicas=RANKS, rank=rank)  # type: ignore[arg-type]
        for rank in range(RANKS)
    ]
    epochs = [[[int(i) for i in _loader(files, sampler=s)] for s in samplers] for _ in range(2)]
    same = sum(one == other for one, other in zip(*epochs))
    return f"{same} of {RANKS} ranks have the order of epoch 1 again"


def _padded(files: List[Path]) -> str:
    """One epoch on four ranks through DistributedSampler, which pads (``drop_last=False``)."""
    import torch.utils.data as data

    seen: List[int] = []
    for rank in range(RANKS):
        sampler: Any = data.DistributedSampler(
            range(len(files)),  # type: ignore[arg-type]
            num_replicas=RANKS,
            rank=rank,
        )
        seen += [int(i) for i in _loader(files, sampler=sampler)]
    return counted(seen, len(files))


def _loader(files: List[Path], **options: Any) -> Any:
    import torch.utils.data

    return torch.utils.data.DataLoader(range(len(files)), batch_size=None, **options)  # type: ignore[arg-type]


def _every_worker(files: List[Path]) -> str:
    """One epoch of an IterableDataset, which does not share out its samples, with two workers."""
    import torch.utils.data

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(range(len(files)))

    loader: Any = torch.utils.data.DataLoader(Stream(), batch_size=None, num_workers=WORKERS)
    return counted([int(i) for i in loader], len(files))


def _filled(files: List[Path]) -> str:
    """Two epochs of DALI's file reader through its iterator (``last_batch_policy=FILL``)."""
    from nvidia.dali import fn, pipeline
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    make: Any = pipeline.Pipeline
    pipe = make(batch_size=BATCH, num_threads=1, device_id=None)
    paths, labels = list(map(str, files)), list(range(len(files)))
    with pipe:
        _, ids = fn.readers.file(files=paths, labels=labels, name="reader")
        pipe.set_outputs(ids)
    pipe.build()
    iterator: Any = DALIGenericIterator([pipe], ["id"], reader_name="reader")
    epochs = []
    for _ in range(2):
        epochs.append([int(i) for batch in iterator for i in batch[0]["id"].flatten()])
        iterator.reset()
    first, second = (counted(epoch, len(files)) for epoch in epochs)
    return f"epoch 1: {first}; epoch 2: {second}"


def _shards(files: List[Path], each: int = 2) -> List[str]:
    """Write tar shards of so many samples, which hold their ids; return their names."""
    import io
    import tarfile

    folder = Path(tempfile.mkdtemp(prefix="iobench-shards-"))  # below the audit's own TMPDIR
    shards = []
    for start in range(0, len(files), each):
        path = folder / f"{start:04d}.tar"
        with tarfile.open(path, "w") as shard:
            for i in range(start, min(start + each, len(files))):
                info = tarfile.TarInfo(f"{i:06d}.id")
                info.size = len(str(i))
                shard.addfile(info, io.BytesIO(str(i).encode()))
        shards.append(str(path))
    return shards


def _streamed(stream: Any, **options: Any) -> List[int]:
    """Return the ids of one epoch of a WebDataset, through a DataLoader of these options."""
    import torch.utils.data

    loader: Any = torch.utils.data.DataLoader(stream, batch_size=None, **options)
    return [int(sample["id"]) for sample in loader]


def _resampled(files: List[Path]) -> str:
    """One epoch of tar shards drawn with replacement (``resampled=True``), two samples a shard."""
    import random

    import webdataset

    random.seed(1)
    stream: Any = webdataset.WebDataset(_shards(files), resampled=True, shardshuffle=False)
    return counted(_streamed(stream.with_epoch(len(files))), len(files))


def _epoch_of_each(files: List[Path]) -> str:
    """One epoch of as many samples as there are (``with_epoch``), with two workers."""
    import webdataset

    stream: Any = webdataset.WebDataset(_shards(files), shardshuffle=False)
    seen = _streamed(stream.with_epoch(len(files)), num_workers=WORKERS)
    return counted(seen, len(files))


def _same_shards(files: List[Path]) -> str:
    """Two epochs of shards shuffled by the library (``shardshuffle=100``)."""
    import webdataset

    stream: Any = webdataset.WebDataset(_shards(files), shardshuffle=100)
    orders = {tuple(_streamed(stream)) for _ in range(2)}
    return f"{len(orders)} order of shards in 2 epochs"


def _uneven_ranks(files: List[Path]) -> str:
    """One epoch on four ranks, among which the library shares out shards of two samples."""
    import webdataset

    counts = []
    for rank in range(RANKS):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
        stream: Any = webdataset.WebDataset(
            _shards(files), shardshuffle=False, nodesplitter=webdataset.split_by_node
        )
        counts.append(len(_streamed(stream)))
    return f"{', '.join(map(str, counts))} samples on {RANKS} ranks"


def _too_few_shards(files: List[Path]) -> str:
    """One epoch of one shard with two workers."""
    import webdataset

    stream: Any = webdataset.WebDataset(_shards(files, len(files)), shardshuffle=False)
    try:
        return counted(_streamed(stream, num_workers=WORKERS), len(files))
    except ValueError:
        return f"1 shard, {WORKERS} workers: the epoch ends with ValueError"


def _failed(files: List[Path]) -> str:
    """One epoch of a SPDL pipeline (``max_failures=-1``) of which one sample is no JPEG."""
    from spdl.pipeline import PipelineBuilder

    def decoded(sample: int) -> int:
        if sample == len(files) // 2:
            raise ValueError("no JPEG")
        return sample

    builder: Any = PipelineBuilder()
    pipeline = (
        builder.add_source(range(len(files))).pipe(decoded).add_sink(BATCH).build(num_threads=1)
    )
    with pipeline.auto_stop():
        return f"{counted(list(pipeline), len(files))}; no error"


def _remainders(files: List[Path]) -> str:
    """One epoch in batches of four (``drop_remainder=True``), made by four worker processes."""
    import grain

    source: Any = grain.MapDataset.source(range(len(files)))
    batches = source.to_iter_dataset().batch(BATCH, drop_remainder=True)
    iterator = iter(batches.mp_prefetch(grain.MultiprocessingOptions(2 * WORKERS)))
    seen = [int(i) for batch in iterator for i in batch]
    iterator.close()
    return counted(seen, len(files))


def _iterated_again(files: List[Path]) -> str:
    """Two epochs of a dataset that is shuffled by a seed (``shuffle(seed=1)``)."""
    import grain

    source: Any = grain.MapDataset.source(range(len(files)))
    dataset = source.shuffle(seed=1).to_iter_dataset()
    return f"{len({tuple(map(int, dataset)) for _ in range(2)})} order in 2 epochs"


def _grain_ranks(files: List[Path]) -> str:
    """One epoch on four ranks through Grain's DataLoader, which keeps the remainder by its name."""
    import grain

    seen: List[int] = []
    for rank in range(RANKS):
        shard = grain.sharding.ShardOptions(rank, RANKS)
        sampler = grain.samplers.IndexSampler(len(files), shard, num_epochs=1)
        loader: Any = grain.DataLoader(data_source=range(len(files)), sampler=sampler)
        seen += [int(i) for i in loader]
    return counted(seen, len(files))


DEFAULTS: Dict[str, Default] = {
    default.name: default
    for default in (
        Default("torch DistributedSampler without set_epoch", "torch", "torch", _same_order,
                "sampler.set_epoch(epoch) before each epoch"),
        Default("torch DistributedSampler(drop_last=False)", "torch", "torch", _padded,
                "drop_last=True, or count the padding out of metrics"),
        Default("torch IterableDataset with workers", "torch", "torch", _every_worker,
                "share out by get_worker_info() in __iter__"),
        Default("DALIGenericIterator(last_batch_policy=FILL)", "dali",
                "nvidia-dali-cuda120", _filled,
                "pad_last_batch=True in the reader with LastBatchPolicy.PARTIAL, or DROP"),
        Default("SPDL build(max_failures=-1)", "spdl", "spdl-core", _failed, "max_failures=0"),
        Default("WebDataset(resampled=True)", "webdataset", "webdataset", _resampled,
                "nodesplitter and workersplitter over a fixed list of shards"),
        Default("WebDataset.with_epoch(samples) with workers", "webdataset", "webdataset",
                _epoch_of_each, "samples / workers, or no with_epoch"),
        Default("WebDataset(shardshuffle=100)", "webdataset", "webdataset", _same_shards,
                "a list of shards that is shuffled before each epoch, or another seed"),
        Default("WebDataset(nodesplitter=split_by_node)", "webdataset", "webdataset",
                _uneven_ranks, "equally many samples a rank: ranks that exchange gradients wait"),
        Default("WebDataset with fewer shards than workers", "webdataset", "webdataset",
                _too_few_shards, "more shards, or empty_check=False: workers without one idle"),
        Default("Grain batch(drop_remainder=True), then mp_prefetch", "grain", "grain",
                _remainders, "batch before to_iter_dataset, or behind mp_prefetch"),
        Default("Grain shuffle(seed), iterated once an epoch", "grain", "grain", _iterated_again,
                "repeat(epochs) behind shuffle, or another seed"),
        Default("Grain DataLoader, ShardOptions(drop_remainder=False)", "grain", "grain",
                _grain_ranks, "MapDataset.source(...)[rank::ranks], whose shares differ by one"),
    )
}  # fmt: skip


def main(argv: List[str]) -> int:
    """Run the default ``argv[0]`` on the JPEG files under ``argv[1]``."""
    default = DEFAULTS[argv[0]]
    files = sorted(Path(argv[1]).rglob("*.jpg"))
    try:
        answer = {"shown": default.run(files), "version": version_of(default.distribution)}
    except ImportError as error:
        answer = {"absent": f"{error}; `make setup-extra` installs {default.distribution}"}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # what a library leaves behind would keep the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
