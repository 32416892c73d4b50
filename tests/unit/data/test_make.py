"""Synthetic datasets: what a decoder, a filesystem and a classifier see of them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Iterator, List, Tuple

import numpy as np
import pytest
import simplejpeg  # noqa: TID253
from hypothesis import given
from hypothesis import strategies as st

from iobench.core import dataset as datasets
from iobench.core.errors import DatasetError
from iobench.data import make, pixels, recipes, size_model
from iobench.host.files import hold
from tests.build.rows import rows

#: Digest of the first samples of a recipe under its own seed. They change only with
#: make.SYNTHESIS or the pinned encoder, and then CHANGELOG's "Results affected" says so.
GOLDEN = {
    ("smoke", 64): "5f9e54d519ead2bc0a1d84eadb7b851a",
    ("cifar-like", 40): "50bfdef743c5a9c591cc388f8e2aeb1d",
    ("imagenet-like", 12): "2ced6386e7fad76d3060960d959e6087",
}
MAKE_ALL = """
import sys
from pathlib import Path
from iobench.data import make
for argument in sys.argv[2:]:
    name, _, samples = argument.partition(":")
    made = make.make(name, Path(sys.argv[1], name), samples=int(samples))
    print(name, made.digest)
"""


def job(name: str, samples: int, *, seed: int = 1, classes: int = 0) -> make.MakeJob:
    recipe = recipes.load(name)
    if classes:
        recipe = recipe.model_copy(update={"classes": classes})
    targets = size_model.target_sizes(recipe, samples, seed)
    return make.MakeJob(recipe, seed, samples, Path(), pixels.bank(recipe, seed), targets)


def encoded(work: make.MakeJob, indexes: range) -> Iterator[make.Encoded]:
    buffer = np.empty(work.recipe.max_side**2 * 3, np.uint8)
    for i in indexes:
        pattern = pixels.pattern(work.seed, work.label(i), work.recipe)
        yield make.encode(work, i, pattern, buffer)


def images(work: make.MakeJob, indexes: range) -> List[np.ndarray]:
    return [simplejpeg.decode_jpeg(each.data) for each in encoded(work, indexes)]


@pytest.mark.parametrize(("name", "samples"), GOLDEN)
def test_same_seed_same_bytes(name: str, samples: int, tmp_path: Path) -> None:
    made = make.make(name, tmp_path / "set", samples=samples, workers=2)
    assert made.digest == GOLDEN[name, samples]


def test_same_bytes_without_the_cpu_s_vector_instructions(tmp_path: Path) -> None:
    from numpy._core import _multiarray_umath as umath

    found = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    environment = {
        **os.environ,
        "NPY_DISABLE_CPU_FEATURES": " ".join(found),
        "JSIMD_FORCENONE": "1",
    }
    wanted = [f"{name}:{samples}" for name, samples in GOLDEN]
    argv = [sys.executable, "-c", MAKE_ALL, str(tmp_path), *wanted]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [f"{n} {digest}" for (n, _), digest in GOLDEN.items()]


def test_another_seed_gives_other_bytes(tmp_path: Path) -> None:
    made = make.make("smoke", tmp_path / "set", seed=2)
    assert made.digest != GOLDEN["smoke", 64]


@pytest.mark.parametrize(("name", "samples"), [("imagenet-like", 200), ("cifar-like", 400)])
def test_sizes_follow_the_target_and_little_is_padding(name: str, samples: int) -> None:
    from scipy import stats

    work = job(name, samples)
    target = size_model.SizeDistribution(work.recipe)
    made = list(encoded(work, range(samples)))
    sizes = np.array([len(each.data) for each in made])
    assert abs(sizes.mean() / work.recipe.mean_bytes - 1) < 0.02
    assert stats.kstest(sizes, np.vectorize(target.cdf)).statistic < 0.05
    assert max(each.padding / len(each.data) for each in made) <= 0.03
    assert np.mean([each.encodes for each in made]) <= 1.1
    assert max(abs(sizes / work.targets - 1)) < 0.035


def test_large_samples_meet_their_target() -> None:
    work = job("large", 40)
    for index, each in zip(range(3), encoded(work, range(3)), strict=True):
        assert each.encodes == 1
        assert abs(len(each.data) / work.targets[index] - 1) < 0.035


@pytest.mark.parametrize("name", recipes.names())
def test_the_target_has_the_mean_that_the_recipe_asks_for(name: str) -> None:
    recipe = recipes.load(name)
    target = size_model.SizeDistribution(recipe)
    sizes = size_model.target_sizes(recipe, 4001, 3)
    assert abs(np.mean(sizes) / recipe.mean_bytes - 1) < 0.002
    assert recipe.min_bytes <= min(sizes) <= max(sizes) <= recipe.max_bytes
    assert target.cdf(target.quantile(0.3)) == pytest.approx(0.3)
    assert sizes != sorted(sizes)


def test_photos_have_the_resolutions_that_the_recipe_asks_for() -> None:
    recipe = recipes.load("imagenet-like")
    targets = size_model.target_sizes(recipe, 500, 1)
    found = [size_model.encoding_for(recipe, size, 1, i) for i, size in enumerate(targets)]
    assert min(min(each.height, each.width) for each in found) >= 256
    assert len({(each.height, each.width) for each in found}) > 300
    assert 450 < np.mean([each.width for each in found]) < 550
    assert 325 < np.mean([each.height for each in found]) < 425


def test_what_is_encoded_decodes_to_colour_of_the_planned_shape() -> None:
    work = job("imagenet-like", 20)
    for index, image in enumerate(images(work, range(4))):
        how = size_model.encoding_for(work.recipe, work.targets[index], 1, index)
        assert image.shape == (how.height, how.width, 3)
        assert image.std(axis=(0, 1)).min() > 15
        spread = image.astype(int).std(axis=2).mean()
        assert spread > 3, "a grey image has three equal channels"


def spectrum_slope(image: np.ndarray) -> float:
    """Log-log slope of radial power against frequency, luma of the central square."""
    side = min(image.shape[:2])
    luma = image[:side, :side].astype(float) @ (0.299, 0.587, 0.114)
    taper = np.hanning(side)
    power = np.abs(np.fft.fft2((luma - luma.mean()) * taper[:, None] * taper)) ** 2
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    edges = np.geomspace(0.01, 0.45, 12)
    bands = [(frequency >= a) & (frequency < b) for a, b in zip(edges, edges[1:])]
    middles = np.sqrt(edges[1:] * edges[:-1])
    return float(np.polyfit(np.log(middles), np.log([power[b].mean() for b in bands]), 1)[0])


def test_power_falls_as_in_natural_images() -> None:
    slopes = [spectrum_slope(image) for image in images(job("imagenet-like", 12), range(12))]
    assert -2.3 < np.mean(slopes) < -1.6
    noise = np.random.default_rng(1).integers(0, 256, (300, 300, 3)).astype(np.uint8)
    assert abs(spectrum_slope(noise)) < 0.2


@pytest.mark.parametrize(("name", "floor"), [("imagenet-like", 0.5), ("cifar-like", 0.22)])
def test_a_class_can_be_learned_from_the_pixels(name: str, floor: float) -> None:
    """Nearest centroid on an 8 x 8 thumbnail of held-out samples; chance is 0.1."""
    work = job(name, 300, classes=10)
    thumbnails = []
    for image in images(work, range(300)):
        side = min(256, *image.shape[:2])
        square = image[:side, :side].reshape(8, side // 8, 8, side // 8, 3)
        thumbnails.append(square.mean((1, 3)).ravel())
    data, labels = np.array(thumbnails), np.array([work.label(i) for i in range(300)])
    train = np.arange(300) % 2 == 0
    centroids = np.array([data[train & (labels == c)].mean(0) for c in range(10)])
    distance = ((data[~train][:, None] - centroids) ** 2).sum(2)
    assert (distance.argmin(1) == labels[~train]).mean() > floor


def block_hashes(plane: np.ndarray, side: int = 64) -> np.ndarray:
    """Return a hash of the ``side`` x ``side`` block at *every* position of a plane."""
    wide = plane.astype(np.uint64)
    for axis, base in ((1, 0x9E3779B97F4A7C15), (0, 0xC2B2AE3D27D4EB4F)):
        count = wide.shape[axis] - side + 1
        total = np.zeros_like(wide.take(range(count), axis))
        for k in range(side):
            total *= np.uint64(base)
            total += wide.take(range(k, k + count), axis)
        wide = total
    return np.unique(wide)


def repeated(planes: List[np.ndarray]) -> int:
    """Return how many blocks two of the planes share, at any position of either."""
    hashes = np.concatenate([block_hashes(plane) for plane in planes])
    return len(hashes) - len(np.unique(hashes))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "samples"), rows([("smoke", 64)], [("imagenet-like", 24)]))
def test_no_two_samples_share_a_block_at_any_shift(name: str, samples: int) -> None:
    work = job(name, samples)
    assert repeated([image[:, :, 1] for image in images(work, range(samples))]) == 0


def test_a_shared_block_would_have_been_found() -> None:
    recipe = recipes.load("smoke")
    bank, pattern = pixels.bank(recipe, 1), pixels.pattern(1, 0, recipe)
    pattern = pixels.Planes(*(np.zeros_like(plane) for plane in pattern))
    one = pixels.Windows((0, 40, 50), (1, 10, 20))
    same_offset = pixels.Windows((0, 57, 61), (1, 27, 31))
    planes = [
        pixels.compose(bank, where, pattern, (256, 256), np.empty(200_000, np.uint8)).luma
        for where in (one, same_offset)
    ]
    assert repeated(planes) > 0


@pytest.mark.parametrize("name", recipes.names())
def test_textures_never_meet_twice_at_one_offset(name: str) -> None:
    recipe = recipes.load(name)
    side, shifts = pixels.bank_shape(recipe)
    seen = set()
    for i in range(20_000):
        height, width = recipe.max_side - i % 3, recipe.max_side - i % 5
        (a, ya, xa), (b, yb, xb) = pixels.placement(i, 9, side, shifts, height, width)
        assert yb >= 0
        assert xb >= 0
        assert ya + height + 1 < side + 1
        assert xa + width + 1 < side + 1
        seen.add((a, b, ya - yb, xa - xb))
    assert len(seen) == 20_000


def test_more_samples_than_combinations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="without repeating"):
        make.make("smoke", tmp_path / "set", samples=10**9)


@given(st.integers(-200, 10_000), st.integers(25, 60_000))
def test_padding_fills_to_the_target_but_never_over_three_per_cent(gap: int, size: int) -> None:
    data = b"\xff\xd8\xff\xe0\x00\x10JFIF\0" + bytes(9) + bytes(size) + b"\xff\xd9"
    out = size_model.pad(data, len(data) + gap)
    assert len(out) - len(data) <= 0.03 * len(data)
    assert len(out) <= max(len(data), len(data) + gap)
    assert out[:20] == data[:20]
    assert out.endswith(data[20:])
    if 4 <= gap <= 0.03 * len(data):
        assert len(out) == len(data) + gap


def test_long_padding_is_several_markers_that_a_decoder_skips() -> None:
    image = np.random.default_rng(1).integers(0, 256, (1500, 1500, 3), np.uint8)
    data = simplejpeg.encode_jpeg(image, quality=100)
    out = size_model.pad(data, len(data) + 100_001)
    assert len(out) == len(data) + 100_001
    assert (simplejpeg.decode_jpeg(out) == simplejpeg.decode_jpeg(data)).all()


def start_making(root: Path) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from iobench.data import make;"
        "make.make('imagenet-like', sys.argv[1], samples=1000, workers=2)"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(root)])


@pytest.mark.slow
def test_a_killed_run_is_recognised_and_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "set"
    with start_making(root) as maker:
        while len(list((root / make.PARTS).glob("*.tsv"))) < 2:
            assert maker.poll() is None, "it ended before it could be killed"
            time.sleep(0.002)
        maker.send_signal(signal.SIGKILL)
    with pytest.raises(DatasetError, match="half-written"):
        datasets.locate(root)
    while True:  # its workers end with the chunk they are at, and hold the folder until then
        try:
            with hold(root):
                break
        except DatasetError:
            time.sleep(0.01)
    kept = {part: part.stat().st_mtime_ns for part in (root / make.PARTS).glob("*.tsv")}
    chunk = make.CHUNK_SAMPLES
    victim = root / "jpeg" / "c0099" / "00000999.jpg"  # as a kill may leave it
    victim.parent.mkdir(parents=True, exist_ok=True)
    victim.write_bytes(b"half")
    calls: List[Tuple[int, int]] = []
    made = make.make(
        "imagenet-like", root, samples=1000, progress=lambda i, n: calls.append((i, n))
    )
    assert calls[0] == (len(kept) * chunk, 1000)
    assert calls[-1] == (1000, 1000)
    fresh = make.make("imagenet-like", tmp_path / "fresh", samples=1000)
    assert made.digest == fresh.digest
    index = datasets.load_index(made)
    files = {str(path.relative_to(root / "jpeg")) for path in (root / "jpeg").rglob("*.jpg")}
    assert files == set(index.files)
    assert all(
        datasets.sample_digest((root / "jpeg" / name).read_bytes()) == digest
        for name, digest in zip(index.files, index.digests, strict=True)
    )
    ours = {".lock", "dataset.json", "jpeg", "samples.tsv"}
    assert {path.name for path in root.iterdir()} == ours


def test_a_worker_that_dies_is_an_error_and_the_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(make, "_make_chunk", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(DatasetError, match="ended with status -9"):
            make.make("smoke", tmp_path / "set")
    assert make.make("smoke", tmp_path / "set").digest == GOLDEN["smoke", 64]


def test_no_two_processes_take_the_same_chunk() -> None:
    count, workers = 50_000, 4
    turns = make._turns(count)
    context = multiprocessing.get_context("fork")

    def take(results: Connection) -> None:
        taken = []
        while turn := os.read(turns, 8):
            taken.append(int.from_bytes(turn, sys.byteorder))
        results.send(taken)

    readers = []
    for _ in range(workers):
        reader, writer = context.Pipe(duplex=False)
        context.Process(target=take, args=(writer,), daemon=True).start()
        readers.append(reader)
    taken = [number for reader in readers for number in reader.recv()]
    os.close(turns)
    assert sorted(taken) == list(range(count))


def test_a_finished_dataset_is_left_as_it_is(tmp_path: Path) -> None:
    first = make.make("smoke", tmp_path / "set")
    before = (tmp_path / "set" / "dataset.json").stat().st_mtime_ns
    assert make.make("smoke", tmp_path / "set") == first
    assert (tmp_path / "set" / "dataset.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(("key", "value"), [("seed", 2), ("samples", 63)])
def test_a_folder_of_another_recipe_or_seed_is_refused(
    tmp_path: Path, finished: bool, key: str, value: int
) -> None:
    root = tmp_path / "set"
    make.make("smoke", root)
    if not finished:
        (root / datasets.PARTIAL).write_text(
            '{"recipe": {"name": "smoke"}, "samples": 64, "seed": 1, "version": 3}'
        )
        (root / datasets.MARKER).unlink()
    with pytest.raises(DatasetError, match=rf"{key} = (64|1) not {value}"):
        make.make("smoke", root, **{key: value})
    with pytest.raises(DatasetError, match="recipe = 'smoke' not 'cifar-like'"):
        make.make("cifar-like", root, samples=64)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(DatasetError, match="not empty"):
        make.make("smoke", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_makers_do_not_mix(tmp_path: Path) -> None:
    with (
        hold(tmp_path),
        pytest.raises(DatasetError, match="is held by"),
    ):
        make.make("smoke", tmp_path)


def test_too_little_space_is_told_before_anything_is_made(tmp_path: Path) -> None:
    samples = shutil.disk_usage(tmp_path).free // recipes.load("large").mean_bytes
    with pytest.raises(DatasetError, match=r"needs .* MB free"):
        make.make("large", tmp_path / "set", samples=min(samples, 4_000_000))
    assert not (tmp_path / "set" / "jpeg").exists()
