"""Loaders: what is particular to one of them.  What all promise is in contract/test_loaders.py."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, List, Sequence, Tuple

import numpy as np
import psutil
import pytest

from iobench.backends.loaders import _batches, _torch_workers
from iobench.backends.loaders import torch as torch_loader
from iobench.core import registry, transforms
from iobench.core.cases import Dataset, Extent
from iobench.core.errors import BackendUnavailable, DatasetError, SpecError
from iobench.core.protocols import LoadRequest
from iobench.host import io_counters
from tests.build import photos
from tests.build.photos import Stored
from tests.capabilities import missing, need

#: DALI's process pool leaves sockets to the garbage collector.
dali_pool = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return photos.stored(tmp_path_factory.mktemp("photos"), photos.samples(18))


def request(stored: Stored, format_: Any = None, **changes: Any) -> LoadRequest:
    return photos.request_of(*stored, format_ or photos.Files(), **changes)


def run(name: str, request: LoadRequest, **options: Any) -> List[Any]:
    loader = registry.load("loaders", name).make(request, **options)
    batches = [
        b if b.data is None else b._replace(data=np.asarray(b.data).copy())
        for b in loader.batches()
    ]
    loader.close()
    return batches


def broken(stored: Stored, folder: Path, sample: int, data: bytes) -> Stored:
    return photos.stored(folder, photos.spoilt(stored[0], sample, data))


# -- torch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"start_method": "spawn"}])
@pytest.mark.parametrize("transform", ["rrc224", "crop224"])
def test_pixels_depend_on_neither_workers_nor_order(
    stored: Stored, transform: str, options: dict
) -> None:
    need("torch")
    by_id = []
    for workers, order in ((0, "stored"), (1, "shuffled"), (3, "window:5")):
        if options and workers != 1:
            continue
        made = request(stored, workers=workers, order=order, transform=transform, batch=6)
        rows = {}
        for batch in run("torch", made, **options if workers else {}):
            rows.update(zip(batch.ids.tolist(), batch.data))
        by_id.append(np.stack([rows[i] for i in range(18)]))
    expected = np.empty_like(by_id[0])
    for i, sample in enumerate(stored[0]):
        chosen = transforms.transform(transform)
        chosen.apply(transforms.decode(sample.data), transforms.SampleRandom(0, 0, i), expected[i])
    assert all(np.array_equal(pixels, expected) for pixels in by_id)


def test_another_epoch_draws_other_crops(stored: Stored) -> None:
    need("torch")
    one, two, again = (
        run(
            "torch",
            request(stored, epoch=epoch),
        )[0].data
        for epoch in (0, 1, 0)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_sample_is_named_in_one_line(
    stored: Stored, tmp_path: Path, workers: int
) -> None:
    need("torch")
    bad = broken(stored, tmp_path, 9, b"no jpeg")
    loader = torch_loader.TorchLoader(request(bad, workers=workers))
    with pytest.raises(DatasetError, match=r"^sample 9 of .*/jpeg: no readable JPEG") as raised:
        list(loader.batches())
    assert "\n" not in str(raised.value)
    loader.close()
    assert len(run("torch", request(bad, stage="read"))) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_file_is_named(stored: Stored, tmp_path: Path, workers: int) -> None:
    need("torch")
    bad = broken(stored, tmp_path, 0, b"")
    made = request(bad, format_=_Absent(), workers=workers, stage="read")
    with pytest.raises(DatasetError, match=r"sample 5 of .*No such file"):
        run("torch", made)


class _Absent(photos.Files):
    def open(self, dataset: Dataset, root: Path) -> photos.FilesReader:
        paths = self.files(dataset, root)
        return photos.FilesReader([*paths[:5], root / "c0" / "gone.jpg", *paths[6:]])


def test_an_image_too_small_is_named(stored: Stored, tmp_path: Path) -> None:
    need("torch")
    bad = broken(stored, tmp_path, 2, photos.jpeg(1, 100, 300))
    with pytest.raises(DatasetError, match=r"sample 2 of .*300x100 is too small to crop 224x224"):
        run("torch", request(bad, transform="crop224"))


def test_workers_are_reaped(stored: Stored) -> None:
    need("torch")
    before = _children()
    loader = torch_loader.TorchLoader(request(stored, workers=2))
    assert len(_children()) == len(before) + 2  # up before the clock, held until the loop
    next(loader.batches())
    assert len(_children()) == len(before) + 2
    loader.close()
    assert _children() == before
    loader.close()


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_what_the_workers_used_before_and_after_the_loop_is_not_counted(
    stored: Stored, start_method: str
) -> None:
    """A spawned worker reads an interpreter, NumPy and torch before it is up, and ends them."""
    need("torch")
    wanted = request(stored, workers=2, stage="read")
    loader = torch_loader.TorchLoader(wanted, start_method=start_method)
    alive = loader.processes()
    before = io_counters.snapshot(alive)
    needed = sum(batch.nbytes for batch in loader.batches())
    ended = io_counters.snapshot(alive)
    loader.close()
    io = io_counters.since(before, before, ended, io_counters.snapshot())
    assert needed <= io.rchar < needed + 1_000_000
    assert 0 <= io.cpu_user_s < 0.3  # two of them take 0.65 s to end
    assert loader.processes() == []


def test_a_fork_server_is_refused(stored: Stored) -> None:
    need("torch")
    with pytest.raises(SpecError, match="'forkserver' is not possible"):
        torch_loader.TorchLoader(request(stored), start_method="forkserver")


def test_the_last_batch_does_not_wait_for_the_workers_end(stored: Stored) -> None:
    need("torch")
    before = _children()
    loader = torch_loader.TorchLoader(request(stored, workers=2))
    assert len(list(loader.batches())) == 4
    assert len(_children()) > len(before)
    loader.close()
    assert _children() == before


def test_touch_reads_each_page_and_counts_bytes() -> None:
    for data in (b"x" * 10_000, memoryview(b"y" * 5000), np.zeros((5, 7, 3), np.uint8), b""):
        assert _batches.touch(data) == memoryview(data).nbytes


def test_queue_and_memory_are_stated(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    need("torch")
    for workers, batches in ((3, 12), (0, 0)):
        asked = request(stored, workers=workers, prefetch=4)
        with contextlib.closing(torch_loader.TorchLoader(asked)) as loader:
            assert loader.queue_batches == batches
    small = os.statvfs_result((4096, 4096, 1000, 100, 100, 0, 0, 0, 0, 255))
    monkeypatch.setattr(_torch_workers.probes.os, "statvfs", lambda path: small)
    with pytest.raises(BackendUnavailable, match=r"/dev/shm has 0 MiB free.*needs .* MiB: make it"):
        torch_loader.TorchLoader(request(stored, workers=2))
    torch_loader.TorchLoader(request(stored, workers=2, stage="read")).close()


def test_a_delay_in_the_decoder_is_slept_once_a_sample(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch")
    slept: List[float] = []
    monkeypatch.setattr(transforms, "delay", slept.append)
    for stage, expected in (("read", 0), ("decode", 16), ("load", 16)):
        slept.clear()
        run("torch", request(stored, workers=0, stage=stage, decode_delay_s=0.5))
        assert slept == [0.5] * expected


def test_probe_splits_each_sample(stored: Stored) -> None:
    times = _batches.probe(request(stored), 5)
    parts = ("decode", "read", "transform")
    assert sorted(times) == [f"{part}_{which}" for part in parts for which in ("at", "s")]
    assert all(len(v) == 5 and min(v) > 0 for v in times.values())
    assert len(_batches.probe(request(stored), 500)["read_s"]) == 16


def test_impossible_torch_options(stored: Stored) -> None:
    need("torch")
    with pytest.raises(SpecError, match="allowed: fork, spawn"):
        torch_loader.TorchLoader(request(stored), start_method="thread")
    with pytest.raises(SpecError, match="unknown transform 'zoom'"):
        torch_loader.TorchLoader(request(stored, transform="zoom"))


def _children() -> List[int]:
    """Return the pids of this process's children, zombies included."""
    return sorted(child.pid for child in psutil.Process().children())


# -- null --------------------------------------------------------------------------------------


def test_null_costs_nothing_and_delays_by_order(stored: Stored) -> None:
    slept: List[float] = []
    batches = run("null", request(stored), delay_s=0.5, sleep=slept.append)
    assert slept == [0.5] * 4
    assert [b.nbytes for b in batches] == [0] * 4
    assert batches[0].data is None
    assert run("null", request(stored), data="resident")[0].data.shape == (4, 3, 224, 224)
    with pytest.raises(SpecError, match="allowed: none, resident"):
        run("null", request(stored), data="some")
    with pytest.raises(SpecError, match="delay_s -1 is not possible"):
        run("null", request(stored), delay_s=-1)


# -- dali --------------------------------------------------------------------------------------


def test_dali_decodes_the_same_pixels_bit_by_bit(stored: Stored) -> None:
    need("dali")
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(batch_size=18, num_threads=1, device_id=None)
    with pipe:
        files = [str(p) for p in photos.Files().files(stored[1], stored[2])]
        data, _ = fn.readers.file(files=files)
        pipe.set_outputs(fn.decoders.image(data, output_type=types.RGB))
    pipe.build()
    (images,) = pipe.run()
    for i, sample in enumerate(stored[0]):
        ours = transforms.decode(sample.data)
        found = transforms.pixel_differences(ours, np.asarray(images.at(i)))
        assert found == {"max": 0.0, "mean": 0.0, "differing": 0.0}


def test_dali_crops_are_windows_of_the_same_pixels(stored: Stored) -> None:
    """crop224 resizes nothing: every DALI batch must hold exact windows of our pixels."""
    need("dali")
    mean = np.array(transforms.IMAGENET_MEAN)[:, None, None]
    for batch in run("dali", request(stored, transform="crop224")):
        for i, row in zip(batch.ids, batch.data):
            image = transforms.decode(stored[0][i].data)
            back = np.rint(row + mean).astype(np.uint8).transpose(1, 2, 0)
            assert any(_holds(image, back[:, ::flip]) for flip in (1, -1))


def _holds(image: np.ndarray, window: np.ndarray) -> bool:
    height, width = image.shape[0] - 223, image.shape[1] - 223
    corner = (image[:height, :width] == window[0, 0]).all(axis=2)
    return any(
        np.array_equal(image[top : top + 224, left : left + 224], window)
        for top, left in np.argwhere(corner)
    )


def test_differences_by_resizing_are_small_and_reported(stored: Stored) -> None:
    """One fixed crop, resized by OpenCV (torch loader) and by DALI with the loader's settings."""
    need("dali")
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    images = [transforms.decode(s.data)[10:210, 5:185].copy() for s in stored[0]]
    found = {}
    for antialias in (False, True):
        pipe = Pipeline(batch_size=18, num_threads=1, device_id=None)
        with pipe:
            source = fn.external_source(source=lambda: images, layout="HWC")
            pipe.set_outputs(
                fn.resize(
                    source,
                    resize_x=128,
                    resize_y=128,
                    interp_type=types.INTERP_LINEAR,
                    antialias=antialias,
                )
            )
        pipe.build()
        (resized,) = pipe.run()
        theirs = np.asarray(resized.as_tensor())
        ours = np.stack([transforms.resize(image, 128, 128) for image in images])
        found[antialias] = transforms.pixel_differences(ours, theirs)
    assert found[False]["max"] <= 2
    assert found[False]["mean"] < 0.5
    assert found[True]["mean"] > found[False]["mean"]


def test_dali_reads_nothing_before_the_loop(stored: Stored) -> None:
    need("dali")
    total = int(request(stored).sizes.sum())
    before = _rchar()
    loader = registry.load("loaders", "dali").make(request(stored, stage="read"), mmap=False)
    assert _rchar() - before < total / 4
    assert len(list(loader.batches())) == 4
    loader.close()
    assert _rchar() - before >= int(request(stored).sizes[request(stored).ids].sum())


def _rchar() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


class _Logged(photos.Files):
    """Writes one byte to a log for each sample read, in whatever process."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def open(self, dataset: Dataset, root: Path) -> Any:
        return _LoggedReader(self.files(dataset, root), self.log)


class _LoggedReader(photos.FilesReader):
    def __init__(self, paths: Sequence[Path], log: Path) -> None:
        super().__init__(paths)
        self.log = log

    def read(self, index: int) -> Tuple[Any, int]:
        with self.log.open("ab") as log:
            log.write(b".")
        return super().read(index)

    def extents(self, index: int) -> Sequence[Extent]:
        return super().extents(index)


@dali_pool
def test_an_external_source_starts_empty_and_is_reaped(stored: Stored, tmp_path: Path) -> None:
    need("dali")
    log = tmp_path / "log"
    log.touch()
    before = _children()
    loader = registry.load("loaders", "dali").make(
        request(stored, format_=_Logged(log), workers=2), reader="external"
    )
    assert len(_children()) >= len(before) + 2
    assert len(loader.processes()) == 2  # what they used until now is not counted
    assert set(loader.processes()) <= set(_children()) - set(before)
    assert log.stat().st_size == 0
    batches = list(loader.batches())
    loader.close()
    loader.close()
    assert log.stat().st_size >= 16
    assert [len(b.ids) for b in batches] == [4] * 4
    assert loader.processes() == []
    # the resource tracker is Python's own, one a process, and stays
    assert len(_children()) <= len(before) + 1


def test_dali_batches_outlive_the_pipeline(stored: Stored) -> None:
    need("dali")
    loader = registry.load("loaders", "dali").make(request(stored))
    kept = [(b.data, b.data.copy()) for b in loader.batches()]
    loader.close()
    assert all(np.array_equal(view, copy) for view, copy in kept)
    assert not kept[0][0].flags.owndata  # a view: no copy was made for it


@pytest.mark.parametrize("options", [{}, {"reader": "external"}])
@dali_pool
def test_dali_names_a_corrupt_sample(stored: Stored, tmp_path: Path, options: dict) -> None:
    need("dali")
    bad = broken(stored, tmp_path, 9, b"no jpeg")
    with pytest.raises(DatasetError, match=r"^sample 9 of .*/jpeg: no readable JPEG") as raised:
        run("dali", request(bad), **options)
    assert "\n" not in str(raised.value)


def test_dali_names_an_image_too_small(stored: Stored, tmp_path: Path) -> None:
    need("dali")
    bad = broken(stored, tmp_path, 2, photos.jpeg(1, 100, 300))
    with pytest.raises(DatasetError, match=r"sample 2 of .*too small to crop 224x224"):
        run("dali", request(bad, transform="crop224"))


def test_impossible_dali_options(stored: Stored) -> None:
    need("dali")
    make = registry.load("loaders", "dali").make
    with pytest.raises(SpecError, match="allowed: cpu, mixed"):
        make(request(stored), device="gpu")
    with pytest.raises(SpecError, match="allowed: native, external"):
        make(request(stored), reader="own")
    with pytest.raises(SpecError, match="use the torch loader"):
        make(request(stored, decode_delay_s=0.1))
    if missing("cuda"):
        with pytest.raises(BackendUnavailable, match="'mixed' needs a GPU"):
            make(request(stored), device="mixed")


def test_dali_decodes_on_a_gpu(stored: Stored) -> None:
    need("cuda")
    need("dali")
    loader = registry.load("loaders", "dali").make(request(stored), device="mixed")
    batch = next(loader.batches())
    assert batch.data.device.type == "cuda"
    assert tuple(batch.data.shape) == (4, 3, 224, 224)
    loader.close()


def test_dali_cifar32_cuts_the_padded_image(tmp_path: Path) -> None:
    need("dali")
    samples = photos.samples(32, small=True)
    small = photos.stored(tmp_path, samples)
    scale, shift = (
        np.array(v)[:, None, None] for v in (transforms.CIFAR_STD, transforms.CIFAR_MEAN)
    )
    corners = set()
    for batch in run("dali", request(small, transform="cifar32")):
        for i, row in zip(batch.ids, batch.data):
            padded = np.pad(transforms.decode(samples[i].data), ((4, 4), (4, 4), (0, 0)))
            back = np.rint(row * scale + shift).astype(np.uint8).transpose(1, 2, 0)
            hits = [
                (top, left)
                for top in range(9)
                for left in range(9)
                for flip in (1, -1)
                if np.array_equal(padded[top : top + 32, left : left + 32], back[:, ::flip])
            ]
            assert len(hits) == 1
            corners.update(hits)
    assert len(corners) > 15


def test_a_loader_that_never_ran_is_closed_and_reaped(stored: Stored) -> None:
    need("torch")
    before = _children()
    loader = torch_loader.TorchLoader(request(stored, workers=2))
    loader.close()
    assert _children() == before


def test_nothing_is_opened_before_the_loop(stored: Stored) -> None:
    need("torch")
    loader = torch_loader.TorchLoader(request(stored, workers=2))
    try:
        root = str(request(stored).root)
        for child in psutil.Process().children():
            opened = [os.readlink(fd) for fd in Path(f"/proc/{child.pid}/fd").iterdir()]
            assert not [path for path in opened if path.startswith(root)]
    finally:
        loader.close()
