"""What is particular to one format: other programs' readers, options, damage."""

from __future__ import annotations

import dataclasses
import re
import resource
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from iobench.backends.formats import _datum as caffe
from iobench.backends.formats import _reader
from iobench.backends.formats import lmdb as caffe_lmdb
from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Dataset
from iobench.core.errors import DatasetError
from iobench.core.protocols import StoredSample
from iobench.data import convert, make
from tests.capabilities import need


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make.make("smoke", tmp_path_factory.mktemp("data") / "set", samples=20)


@pytest.fixture
def copy(dataset: Dataset, tmp_path: Path) -> Dataset:
    """The same samples in a folder of the test's own, without other forms."""
    root = tmp_path / "set"
    root.mkdir()
    for name in ("jpeg", "samples.tsv", "dataset.json"):
        (root / name).symlink_to(Path(dataset.root, name))
    return datasets.locate(root)


def expected(dataset: Dataset) -> List[Tuple[bytes, int]]:
    index = datasets.load_index(dataset)
    return [
        (Path(dataset.jpeg_root, file).read_bytes(), int(label))
        for file, label in zip(index.files, index.labels, strict=True)
    ]


def through_dali(reader: str, samples: int, **options: Any) -> List[Tuple[bytes, Any]]:
    """Return what DALI's own reader gives for an epoch: (bytes, label as it gives it)."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def pipeline() -> Any:
        module, _, name = reader.rpartition(".")
        return tuple(getattr(getattr(fn, module), name)(name="r", **options))

    pipe = pipeline()
    pipe.build()
    assert pipe.reader_meta("r")["epoch_size"] == samples
    rows = []
    for _ in range(samples // 4):
        data, labels = pipe.run()
        rows += [(bytes(np.array(data[i])), np.array(labels[i])) for i in range(4)]
    return rows


@pytest.mark.filterwarnings("ignore")
def test_dali_reads_our_lmdb(dataset: Dataset) -> None:
    need("dali")
    need("lmdb")
    root = convert.convert(dataset, "lmdb")
    rows = through_dali("readers.caffe", 20, path=str(root))
    assert [(data, int(label[0])) for data, label in rows] == expected(dataset)


@pytest.mark.filterwarnings("ignore")
def test_dali_reads_our_shards(copy: Dataset) -> None:
    need("dali")
    root = convert.convert(copy, "tar", options={"shard_bytes": 150_000})
    shards = sorted(map(str, root.glob("*.tar")))
    assert len(shards) > 2
    rows = through_dali("readers.webdataset", 20, paths=shards, ext=["jpg", "cls"])
    found = [(data, int(bytes(label).decode())) for data, label in rows]
    assert found == expected(copy)


def test_any_tar_program_reads_our_shards(copy: Dataset) -> None:
    root = convert.convert(copy, "tar", options={"shard_bytes": 150_000})
    members: Dict[str, bytes] = {}
    for shard in sorted(root.glob("*.tar")):
        assert shard.stat().st_size < 150_000 + 60_000
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                members[member.name] = file.read()
    found = [(members[f"{i:08d}.jpg"], int(members[f"{i:08d}.cls"])) for i in range(20)]
    assert found == expected(copy)
    assert len(members) == 40


def test_lmdb_keys_are_caffe_s(dataset: Dataset) -> None:
    need("lmdb")
    import lmdb

    root = convert.convert(dataset, "lmdb")
    with lmdb.open(str(root), readonly=True, lock=False) as environment, environment.begin() as txn:
        keys = [bytes(key) for key, _ in txn.cursor()]
    index = datasets.load_index(dataset)
    assert keys == [f"{i:08d}_{key}".encode() for i, key in enumerate(index.keys)]


def test_a_datum_s_bytes() -> None:
    """Against the wire format by hand (caffe.proto's Datum)."""
    encoded = caffe.datum(StoredSample(0, "k", b"\xff" * 300, 200))
    assert encoded == b"\x22\xac\x02" + b"\xff" * 300 + b"\x28\xc8\x01" + b"\x38\x01"
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    raw = caffe.datum(StoredSample(0, "k", image, 0))
    blue = [2, 5, 8, 11, 14, 17]
    planes = bytes(blue + [n - 1 for n in blue] + [n - 2 for n in blue])
    assert raw == b"\x08\x03\x10\x02\x18\x03\x22\x12" + planes + b"\x28\x00"
    datum = caffe.parse_datum(raw)
    assert datum.shape == (3, 2, 3)
    assert not datum.encoded


@pytest.mark.parametrize("damaged", [b"", b"\x22\x05ab", b"hello", b"\x28\x01", b"\x22\xff"])
def test_a_value_that_is_no_datum_is_told(damaged: bytes) -> None:
    with pytest.raises(DatasetError, match="no Caffe Datum"):
        caffe.parse_datum(damaged)


@pytest.mark.slow
def test_lmdb_grows_past_its_first_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("lmdb")
    monkeypatch.setattr(caffe_lmdb, "COMMIT_BYTES", 8 << 20)
    blob = bytes(4 << 20)
    count = 300  # 300 x 4 MiB are more than the 1 GiB that the map begins with
    caffe_lmdb.LmdbFormat().write(
        (StoredSample(i, f"k{i}", blob, i) for i in range(count)), tmp_path
    )
    reader = caffe_lmdb.LmdbReader(tmp_path, count, readahead=False, lock=False)
    assert reader.read(count - 1) == (blob, count - 1)
    reader.close()
    (tmp_path / "data.mdb").unlink()


def test_an_lmdb_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """A full disk, a quota; here, a limit of the file's size."""
    need("lmdb")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    samples = [StoredSample(i, f"k{i}", bytes(1 << 20), i) for i in range(4)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(DatasetError, match=r"cannot write .*data\.mdb: .*--out") as caught:
            caffe_lmdb.LmdbFormat().write(samples, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lmdb", {"readahead": False}),
        ("lmdb", {"lock": True}),
        ("hdf5", {"cache_bytes": 0}),
        ("hdf5", {"driver": "core"}),
        ("hdf5", {"chunk": 3}),
        ("hdf5", {"readahead": False}),
    ],
)
def test_options_change_how_not_what(copy: Dataset, name: str, options: Dict[str, Any]) -> None:
    need(name)
    root = convert.convert(copy, name, options=options)
    reader = registry.load("formats", name).make(**options).open(copy, root)
    assert [reader.read(i) for i in range(20)] == expected(copy)
    reader.close()


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
@pytest.mark.parametrize("chunk", [0, 3])
def test_raw_hdf5_in_chunks(copy: Dataset, compression: str, chunk: int) -> None:
    need("hdf5")
    import h5py

    options = {"compression": compression, "chunk": chunk, "side": 64}
    root = convert.convert(copy, "hdf5", content="raw", options=options)
    with h5py.File(root / "data.h5") as file:
        assert file["pixels"].chunks == (chunk or 1, 64, 64, 3)
        assert file["pixels"].compression == compression
        assert file["pixels"].shape == (20, 64, 64, 3)
    assert [row.ok for row in convert.verify(copy, [root.name])] == [True]
    reader = registry.load("formats", "hdf5").make().open(copy, root)
    (extent,) = reader.extents(4)
    assert 0 < extent.length <= (chunk or 1) * 64 * 64 * 3  # stored plain where lzf gains nothing
    assert (reader.extents(3) == reader.extents(5)) == (chunk == 3)
    reader.close()


def test_hdf5_s_extents_are_what_the_library_reads(copy: Dataset, tmp_path: Path) -> None:
    """strace: the offsets and lengths of its reads, one collection after another."""
    need("hdf5")
    need("strace")
    root = convert.convert(copy, "hdf5")
    reader = registry.load("formats", "hdf5").make().open(copy, root)
    wanted = [tuple(e[1:]) for i in (19, 0, 10) for e in reader.extents(i)[1:]]
    assert len(set(wanted)) == 6  # three collections
    reader.close()
    trace = tmp_path / "trace"
    code = (
        "import sys; from pathlib import Path; from iobench.core import dataset, registry;"
        "found = dataset.locate(Path(sys.argv[1]));"
        "reader = registry.load('formats', 'hdf5').make().open(found, Path(sys.argv[2]));"
        "[reader.read(i) for i in (19, 0, 10)]"
    )
    argv = ["strace", "-f", "-y", "-e", "trace=pread64", "-o", str(trace)]
    argv += [sys.executable, "-c", code, copy.root, str(root)]
    subprocess.run(argv, check=True)
    found = re.findall(r"data\.h5>, .*, (\d+), (\d+)\) += \d+", trace.read_text())
    assert [(int(offset), int(length)) for length, offset in found][-6:] == wanted


def test_floats_lie_as_caffe_s_layer_reads_them(copy: Dataset) -> None:
    """Against a reader of HDF5 by hand: names, types, shapes, channel order, mean, one piece."""
    need("hdf5")
    import h5py

    root = convert.convert(copy, "hdf5", content="float", options={"shard": 8, "side": 48})
    files = sorted(root.glob("*.h5"))
    assert [path.name for path in files] == [f"data-{i:05d}.h5" for i in range(3)]
    index = datasets.load_index(copy)
    mean = np.array([103.53, 116.28, 123.675], np.float32)
    rows = 0
    for path in files:
        with h5py.File(path) as file:
            data, labels = file["data"], file["label"]
            assert (data.dtype, labels.dtype) == (np.float32, np.float32)
            assert data.shape[1:] == (3, 48, 48)
            assert data.chunks is None
            assert len(labels) == len(data)
            for row, label in zip(data, labels):
                pixels = convert.pixels(Path(copy.jpeg_root, index.files[rows]).read_bytes(), 48)
                blue_first = pixels[:, :, ::-1].astype(np.float32) - mean
                assert np.array_equal(row.transpose(1, 2, 0), blue_first)
                assert label == index.labels[rows]
                rows += 1
    assert rows == 20
    assert [row.ok for row in convert.verify(copy, [root.name])] == [True]
    with h5py.File(files[1], "r+") as file:
        file["data"][3, 1, 7, 7] += 1
    (found,) = convert.verify(copy, [root.name])
    assert not found.ok
    assert found.detail.startswith("sample 11 ")


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("float", {"chunk": 4}, "in one piece"),
        ("float", {"compression": "gzip"}, "in one piece"),
        ("raw", {"shard": 4}, "float content alone"),
    ],
)
def test_options_of_another_content_are_refused(
    copy: Dataset, content: str, options: Dict[str, Any], words: str
) -> None:
    need("hdf5")
    with pytest.raises(DatasetError, match=words):
        convert.convert(copy, "hdf5", content=content, options=options)


def test_a_leveldb_is_whole_without_its_log(copy: Dataset) -> None:
    """Everything is in sorted tables: keys as Caffe's tools write them, and no log to replay."""
    need("leveldb")
    import plyvel

    root = convert.convert(copy, "leveldb")
    assert [p.stat().st_size for p in root.glob("*.log")] in ([], [0])
    before = sorted((p.name, p.stat().st_mtime_ns) for p in root.iterdir())
    reader = registry.load("formats", "leveldb").make().open(copy, root)
    second = registry.load("formats", "leveldb").make().open(copy, root)
    assert reader.read(5) == second.read(5)  # two at once: LevelDB itself would refuse
    reader.close()
    second.close()
    assert sorted((p.name, p.stat().st_mtime_ns) for p in root.iterdir()) == before
    database = plyvel.DB(str(root))
    keys = [bytes(key) for key, _ in database]
    database.close()
    index = datasets.load_index(copy)
    assert keys == [f"{i:08d}_{key}".encode() for i, key in enumerate(index.keys)]


def test_a_leveldb_may_lie_where_nobody_may_write(copy: Dataset) -> None:
    need("leveldb")
    root = convert.convert(copy, "leveldb")
    for path in (*root.iterdir(), root):
        path.chmod(0o555 if path.is_dir() else 0o444)
    reader = registry.load("formats", "leveldb").make().open(copy, root)
    assert reader.read(0)[1] == 0
    reader.close()
    root.chmod(0o755)


def test_a_table_that_is_none_is_told(copy: Dataset) -> None:
    need("leveldb")
    root = convert.convert(copy, "leveldb")
    table = next(root.glob("*.ldb"))
    table.write_bytes(table.read_bytes()[:-9])
    reader = registry.load("formats", "leveldb").make().open(copy, root)
    with pytest.raises(DatasetError, match="no table of a LevelDB"):
        reader.extents(0)
    (root / "CURRENT").unlink()
    with pytest.raises(DatasetError, match="no LevelDB"):
        reader.read(0)


def test_compression_of_jpeg_bytes_is_refused(copy: Dataset) -> None:
    need("hdf5")
    with pytest.raises(DatasetError, match="needs raw content"):
        convert.convert(copy, "hdf5", options={"compression": "gzip"})
    assert not datasets.has_form(copy, "hdf5")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hdf5", {"compression": "zip"}),
        ("hdf5", {"driver": "stdio"}),
        ("hdf5", {"chunk": -1}),
        ("tar", {"shard_bytes": 0}),
    ],
)
def test_impossible_options_are_told(name: str, options: Dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match=str(next(iter(options)))):
        registry.load("formats", name).make(**options)


def test_a_missing_file_is_named(dataset: Dataset) -> None:
    elsewhere = dataclasses.replace(dataset, jpeg_root="/nowhere")
    reader = registry.load("formats", "jpeg").make().open(elsewhere, Path("/nowhere"))
    with pytest.raises(DatasetError, match=r"/nowhere/c0000/00000000\.jpg"):
        reader.read(0)


def test_a_shortened_shard_is_told(copy: Dataset) -> None:
    root = convert.convert(copy, "tar")
    (shard,) = root.glob("*.tar")
    shard.write_bytes(shard.read_bytes()[:300_000])
    reader = registry.load("formats", "tar").make().open(copy, root)
    with pytest.raises(DatasetError, match="shorter than its index"):
        reader.read(19)
    reader.close()


@pytest.mark.parametrize(
    ("name", "options"), [("tar", {"shard_bytes": 1}), ("tfrecord", {"shard": 1})]
)
def test_few_shards_stay_open(
    name: str, options: Dict[str, Any], copy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "tfrecord":
        need("crc32c")
    monkeypatch.setattr(_reader, "OPEN_SHARDS", 2)
    root = convert.convert(copy, name, options=options)
    form = registry.load("formats", name).make(**options)
    assert len(form.files(copy, root)) == 20
    reader = form.open(copy, root)
    assert [reader.read(i) for i in range(20)] == expected(copy)
    assert len(reader._opened) == 2
    reader.close()


@pytest.mark.parametrize("each", [3, 7, 20, 50])
def test_tfrecords_may_be_many_to_a_file(copy: Dataset, each: int) -> None:
    need("crc32c")
    root = convert.convert(copy, "tfrecord", options={"shard": each})
    form = registry.load("formats", "tfrecord").make(shard=each)
    assert len(form.files(copy, root)) == -(-20 // each)
    reader = form.open(copy, root)
    found = [(bytes(data), label) for data, label in map(reader.read, range(20))]
    assert found == [(bytes(data), label) for data, label in expected(copy)]
    reader.close()


def test_a_damaged_npz_is_named(copy: Dataset) -> None:
    root = convert.convert(copy, "npz")
    form = registry.load("formats", "npz").make()
    path = form.files(copy, root)[5]
    whole = path.read_bytes()
    path.write_bytes(whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])
    reader = form.open(copy, root)
    with pytest.raises(DatasetError, match=r"00000005\.npz.*convert again"):
        reader.read(5)
    with np.load(form.files(copy, root)[6]) as arrays:  # as DLIO and NumPy read it
        assert set(arrays) == {"x", "y"}


def test_tfrecords_are_those_that_others_read(copy: Dataset, tmp_path: Path) -> None:
    """DALI's reader, which parses protocol buffers by itself, finds what was written."""
    need("crc32c")
    need("dali")
    import nvidia.dali.fn as fn
    import nvidia.dali.tfrecord as features
    from nvidia.dali.pipeline import Pipeline

    root = convert.convert(copy, "tfrecord")
    rows = np.load(root / "index.npy")
    lines = [f"{offset} {12 + length + 4}" for offset, length, *_ in rows.tolist()]
    (tmp_path / "idx").write_text("\n".join(lines) + "\n")
    pipe: Any = Pipeline(batch_size=20, num_threads=1, device_id=None)
    wanted = {
        "image/encoded": features.FixedLenFeature((), features.string, ""),
        "image/class/label": features.FixedLenFeature([1], features.int64, -1),
    }
    with pipe:
        read = fn.readers.tfrecord(
            path=str(root / "data.tfrecord"), index_path=str(tmp_path / "idx"), features=wanted
        )
        pipe.set_outputs(read["image/encoded"], read["image/class/label"])
    pipe.build()
    jpegs, labels = pipe.run()
    found = [(np.asarray(jpegs.at(i)).tobytes(), int(labels.at(i)[0])) for i in range(20)]
    assert found == expected(copy)


def test_a_tfrecord_is_written_byte_by_byte_as_specified() -> None:
    """Framing and masked checksum of TensorFlow's documentation, over a record of a few bytes."""
    need("crc32c")
    from iobench.backends.formats import _example, tfrecord

    jpeg_feature = b"\x0a\x15\x0a\x0dimage/encoded\x12\x04\x0a\x02\x0a\x00"
    assert _example.example(b"", 1, 300).endswith(jpeg_feature)
    assert b"image/id\x12\x06\x1a\x04\x0a\x02\xac\x02" in _example.example(b"", 1, 300)
    crc = 0xE3069283  # of "123456789": the check value of CRC-32C
    turned = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    assert tfrecord.masked(b"123456789") == (turned + 0xA282EAD8) % 2**32


@pytest.mark.parametrize(
    ("at", "what"), [(-200, "is damaged at byte"), (None, "is shorter than its index says")]
)
def test_a_damaged_tfrecord_is_told(copy: Dataset, at: Any, what: str) -> None:
    need("crc32c")
    root = convert.convert(copy, "tfrecord")
    data = bytearray((root / "data.tfrecord").read_bytes())
    if at is None:
        data = data[:-200]
    else:
        data[at] ^= 1
    (root / "data.tfrecord").write_bytes(data)
    reader = registry.load("formats", "tfrecord").make().open(copy, root)
    assert reader.read(0) == expected(copy)[0]
    with pytest.raises(DatasetError, match=what):
        reader.read(19)
    reader.close()


def test_arrayrecords_are_those_that_grain_reads(copy: Dataset) -> None:
    """By the source of Grain's library, one record a chunk, in the framing of tf.train.Example."""
    need("arrayrecord")
    from array_record.python import array_record_data_source

    from iobench.backends.formats._example import example

    root = convert.convert(copy, "arrayrecord")
    source = array_record_data_source.ArrayRecordDataSource(str(root / "data.array_record"))
    stored = [example(data, label, i) for i, (data, label) in enumerate(expected(copy))]
    with source:
        assert [source[i] for i in range(20)] == stored
        assert "group_size:1," in source._readers[0].writer_options_string()


@pytest.mark.parametrize("samples", [1, 20, 30_000])
def test_the_places_of_arrayrecords_are_those_of_the_footer(tmp_path: Path, samples: int) -> None:
    """Chunks follow each other without a gap, whatever number of blocks the footer takes."""
    need("arrayrecord")
    stored = [StoredSample(i, str(i), bytes([i % 251]) * (i % 97), i % 7) for i in range(samples)]
    form = registry.load("formats", "arrayrecord").make()
    form.write(iter(stored), tmp_path)
    reader = form.open(None, tmp_path)
    end = 64  # the file's own header
    for sample in stored[:: max(1, samples // 100)]:
        assert reader.read(sample.id) == (sample.data, sample.label)
    for sample in stored:
        (extent,) = reader.extents(sample.id)
        assert extent.offset == end
        end += extent.length
    reader.close()


def test_one_pread_of_its_extent_reads_an_arrayrecord(copy: Dataset) -> None:
    need("arrayrecord")
    need("strace")
    root = convert.convert(copy, "arrayrecord")
    form = registry.load("formats", "arrayrecord").make()
    extents = [form.open(copy, root).extents(i)[0] for i in (7, 3)]
    code = (
        "import pathlib, sys\n"
        "from iobench.core import registry\n"
        "form = registry.load('formats', 'arrayrecord').make()\n"
        "reader = form.open(None, pathlib.Path(sys.argv[1]))\n"
        "[reader.read(i) for i in (7, 3)]\n"
    )
    argv = ["strace", "-f", "-e", "trace=pread64", sys.executable, "-c", code, str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = re.findall(r"pread64\(\d+, .*, (\d+), (\d+)\) = (\d+)", done.stderr)
    wanted = [(str(e.length), str(e.offset), str(e.length)) for e in extents]
    assert [row for row in found if row[1] != "0"][-2:] == wanted


@pytest.mark.parametrize(("at", "what"), [(300, "Corrupted"), (None, "has not 20 records")])
def test_a_damaged_arrayrecord_is_told(copy: Dataset, at: Any, what: str) -> None:
    need("arrayrecord")
    root = convert.convert(copy, "arrayrecord")
    path = root / "data.array_record"
    data = bytearray(path.read_bytes())
    reader = registry.load("formats", "arrayrecord").make().open(copy, root)
    if at is None:
        data = data[:-200]
    else:
        data[reader.extents(19)[0].offset + at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=what):
        reader.read(19)
    if at is not None:
        assert reader.read(0) == expected(copy)[0]
    reader.close()


def test_a_file_that_is_no_arrayrecord_is_told(tmp_path: Path) -> None:
    from iobench.backends.formats import arrayrecord

    (tmp_path / "file").write_bytes(bytes(200_000))
    with pytest.raises(DatasetError, match="has no footer of ArrayRecord"):
        arrayrecord.chunks(tmp_path / "file")
