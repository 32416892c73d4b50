"""Input loops as a competent user writes them by hand; nothing of iobench is imported here.

``python benchmarks/handwritten.py TASK.json`` reads the listed samples and prints when its loop
began and when each step was done, by CLOCK_MONOTONIC.  TASK.json: loader, format, root, index
(samples.tsv), ids (.npy), batch, workers, prefetch, buffer (samples to shuffle among), and the
loader's options: threads, in_order.  It prints a line and waits for one before it opens the data,
before its loop and after it.  ``benchmarks/by_hand.py`` runs it.
"""

from __future__ import annotations

import json
import math
import os
import random
import struct
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

MEAN = np.array([123.675, 116.28, 103.53])
STD = np.array([58.395, 57.12, 57.375])
TABLES = [((np.arange(256) - m) / s).astype(np.float32) for m, s in zip(MEAN, STD)]


# -- torch: a dataset per format, one shared way to make a batch -----------------------------


class Jpegs:
    def __init__(self, task, index):
        self.paths = [f"{task['root']}/{key}.jpg" for key, _ in index]
        self.labels = [label for _, label in index]

    def open(self):
        pass

    def read(self, i):
        with open(self.paths[i], "rb", buffering=0) as file:
            return file.read(), self.labels[i]


class Lmdb:
    def __init__(self, task, index):
        self.root = task["root"]

    def open(self):
        import lmdb

        environment = lmdb.open(self.root, readonly=True, lock=False, max_spare_txns=1)
        self.cursor = environment.begin(buffers=True).cursor()

    def read(self, i):
        self.cursor.set_range(b"%08d_" % i)
        return datum(self.cursor.value())


class Hdf5:
    def __init__(self, task, index):
        self.path = f"{task['root']}/data.h5"

    def open(self):
        import h5py

        file = h5py.File(self.path, "r", locking=False)
        self.data, self.labels = file["jpeg"], file["label"][:]

    def read(self, i):
        return self.data[i], int(self.labels[i])


class Tar:
    def __init__(self, task, index):
        self.members, self.labels = [], [label for _, label in index]
        for path in sorted(Path(task["root"]).glob("*.tar")):
            with tarfile.open(path) as shard:
                self.members += [
                    (str(path), m.offset_data, m.size) for m in shard if m.name.endswith(".jpg")
                ]

    def open(self):
        paths = {path for path, _, _ in self.members}
        self.files = {path: os.open(path, os.O_RDONLY) for path in paths}

    def read(self, i):
        path, offset, size = self.members[i]
        return os.pread(self.files[path], size, offset), self.labels[i]


class Parquet:
    def __init__(self, task, index):
        self.path = f"{task['root']}/data.parquet"
        self.labels, self.last = [label for _, label in index], None

    def open(self):
        import pyarrow.parquet

        self.file = pyarrow.parquet.ParquetFile(self.path)
        self.rows = self.file.metadata.row_group(0).num_rows

    def read(self, i):
        group, row = divmod(i, self.rows)
        if group != self.last:
            table = self.file.read_row_group(group, columns=["jpeg"], use_threads=False)
            self.jpegs, self.last = table["jpeg"].combine_chunks(), group
        return memoryview(self.jpegs[row].as_buffer()).cast("B"), self.labels[i]


class Tfrecord:
    """Record by record, at offsets that one walk over the lengths in the file gives."""

    def __init__(self, task, index):
        self.path = f"{task['root']}/data.tfrecord"
        self.labels, self.records, self.jpegs = [label for _, label in index], [], []
        with open(self.path, "rb") as file:
            while head := file.read(12):
                length = struct.unpack("<Q", head[:8])[0]
                self.records.append((file.tell(), length))
                self.jpegs.append(len(jpeg_of(file.read(length))))
                file.seek(4, 1)

    def open(self):
        self.file = os.open(self.path, os.O_RDONLY)

    def read(self, i):
        import google_crc32c

        offset, length = self.records[i]
        record = os.pread(self.file, length + 4, offset)
        crc = google_crc32c.value(record[:length])
        if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != struct.unpack("<I", record[-4:])[
            0
        ]:
            raise ValueError(f"{self.path} is damaged")
        return memoryview(record)[length - self.jpegs[i] : length], self.labels[i]


class ArrayRecord:
    """Through the library's own source, as Grain's users do.  A JPEG ends its record."""

    def __init__(self, task, index):
        self.path = f"{task['root']}/data.array_record"
        self.labels = [label for _, label in index]
        self.open()
        self.jpegs = [len(jpeg_of(self.source[i])) for i in range(len(self.labels))]

    def open(self):
        from array_record.python import array_record_data_source

        self.source = array_record_data_source.ArrayRecordDataSource(self.path)

    def read(self, i):
        record = self.source[i]
        return memoryview(record)[len(record) - self.jpegs[i] :], self.labels[i]


def jpeg_of(example):
    """Return the bytes of the feature image/encoded of a tf.train.Example."""
    for entry in fields(fields(example)[0][1]):
        name, feature = (value for _, value in fields(entry[1]))
        if name == b"image/encoded":
            return fields(fields(feature)[0][1])[0][1]
    raise ValueError("no image/encoded")


def fields(message):
    """Return (number, bytes) of every field of a protocol buffer that has a length."""
    at, found = 0, []
    while at < len(message):
        tag, at = varint(message, at)
        number, at = varint(message, at)
        if tag & 7 == 2:
            found.append((tag >> 3, message[at : at + number]))
            at += number
    return found


def datum(value):
    """Return (image bytes, label) of a Caffe Datum: field 4 is the data, 5 the label."""
    at, data, label = 0, None, 0
    while at < len(value):
        tag, at = varint(value, at)
        number, at = varint(value, at)
        if tag & 7 == 2:
            if tag >> 3 == 4:
                data = value[at : at + number]
            at += number
        elif tag >> 3 == 5:
            label = number
    return data, label


def varint(value, at):
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7


KINDS = {"jpeg": Jpegs, "lmdb": Lmdb, "hdf5": Hdf5, "tar": Tar, "parquet": Parquet}
KINDS.update(tfrecord=Tfrecord, arrayrecord=ArrayRecord)


class Batches:
    """A map-style dataset that returns a whole batch, built in shared memory."""

    def __init__(self, task, index, size):
        self.sources = [KINDS[task["format"]](task, index) for _ in range(task.get("threads", 1))]
        self.size, self.opened = size, False

    def __len__(self):
        return self.size

    def __getitems__(self, ids):
        import cv2
        import torch

        if not self.opened:
            cv2.setNumThreads(1)
            for source in self.sources:
                source.open()
            self.pool = ThreadPoolExecutor(len(self.sources))  # which starts what it is given
            self.opened = True
        images = shared_images(len(ids))
        rows, count = images.numpy(), len(self.sources)
        if count == 1:
            labels = self.fill(self.sources[0], ids, rows)
        else:
            parts = [
                (list(p), r)
                for p, r in zip(np.array_split(ids, count), np.array_split(rows, count))
            ]
            filled = self.pool.map(self.fill, self.sources, *zip(*parts))
            labels = [label for part in filled for label in part]
        return images, torch.tensor(labels)

    def fill(self, source, ids, rows):
        labels = []
        for row, i in zip(rows, ids):
            data, label = source.read(i)
            labels.append(label)
            augment(data, row)
        return labels


def shared_images(count):
    import torch

    storage = torch.UntypedStorage._new_shared(count * 3 * 224 * 224 * 4)
    return torch.empty(0).set_(storage, 0, (count, 3, 224, 224))


def augment(data, row):
    """Decode, crop, resize, flip at random and normalise one JPEG into (3, 224, 224) float32."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
    top, left, height, width = crop(*pixels.shape[:2])
    pixels = cv2.resize(pixels[top : top + height, left : left + width], (224, 224))
    if random.random() < 0.5:
        pixels = cv2.flip(pixels, 1)
    for plane, table, out in zip(cv2.split(pixels), TABLES, row):
        cv2.LUT(plane, table, dst=out)


def crop(height, width):
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def same(batch):
    return batch


def torch_loop(task, index, ids):
    size = task["batch"]
    order = [ids[k : k + size].tolist() for k in range(0, len(ids), size)]
    return through_workers(
        task,
        Batches(task, index, len(ids)),
        batch_sampler=order,
        in_order=task.get("in_order", True),
    )


def through_workers(task, dataset, **options):
    import cv2  # noqa: F401  (before the workers fork)
    import simplejpeg  # noqa: F401
    import torch.utils.data

    gate = torch.multiprocessing.Event()  # workers do not begin before the loop
    iterator = iter(
        torch.utils.data.DataLoader(
            dataset,
            collate_fn=same,
            num_workers=task["workers"],
            prefetch_factor=task["prefetch"],
            worker_init_fn=lambda worker: gate.wait(),
            **options,
        )
    )

    def batches():
        gate.set()
        yield from iterator

    return batches()


# -- WebDataset: shards streamed by the same workers -------------------------------------------


def webdataset_loop(task, index, ids):
    import torch
    import webdataset

    shards, walked = sorted(map(str, Path(task["root"]).glob("*.tar"))), []
    wanted, times = np.unique(ids, return_counts=True)
    for _ in range(times[0]):
        random.shuffle(shards)
        walked += shards
    wanted, size = set(wanted.tolist()), task["batch"]

    def filled(samples):
        images = shared_images(len(samples))
        for sample, row in zip(samples, images.numpy()):
            augment(sample["jpg"], row)
        return images, torch.tensor([int(sample["cls"]) for sample in samples])

    stream = (
        webdataset.WebDataset(walked, shardshuffle=False, empty_check=False)
        .select(lambda sample: int(sample["__key__"]) in wanted)
        .shuffle(task["buffer"])
        .listed(size)
        .map(filled)
    )

    def whole():
        left = []
        for images, labels in through_workers(task, stream, batch_size=None):
            if len(labels) == size:
                yield images, labels
            else:
                left.append((images, labels))
        if left:
            images, labels = (torch.cat(column) for column in zip(*left))
            yield from zip(images.split(size), labels.split(size))

    return whole()


# -- Loops that make sample by sample, and then stack them -------------------------------------


def sample_of(source):
    def make(i):
        data, label = source.read(i)
        row = np.empty((3, 224, 224), np.float32)
        augment(data, row)
        return row, label

    return make


def stack(samples):
    rows, labels = zip(*samples)
    return np.stack(rows), np.array(labels)


# -- SPDL: threads that make sample by sample --------------------------------------------------


def spdl_loop(task, index, ids):
    import cv2
    from spdl.pipeline import PipelineBuilder

    cv2.setNumThreads(1)
    make = sample_of(Jpegs(task, index))
    pipeline = (
        PipelineBuilder()
        .add_source(ids.tolist())
        .pipe(make, concurrency=task["workers"], output_order="input")
        .aggregate(task["batch"])
        .pipe(stack)
        .add_sink(task["prefetch"])
        .build(num_threads=task["workers"] + 1, max_failures=0)
    )

    def batches():
        with pipeline.auto_stop():
            yield from pipeline

    return batches()


# -- Grain: threads that make whole batches ----------------------------------------------------


def grain_loop(task, index, ids):
    import cv2
    import grain

    cv2.setNumThreads(1)
    source = KINDS[task["format"]](task, index)
    source.open()
    threads = task["workers"]
    batches = grain.MapDataset.source(ids.tolist()).map(sample_of(source))
    batches = batches.batch(task["batch"], drop_remainder=True, batch_fn=stack)
    ahead = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads * task["prefetch"])
    return iter(batches.to_iter_dataset(ahead))


# -- DALI --------------------------------------------------------------------------------------


def dali_loop(task, index, ids):
    from nvidia.dali import fn, pipeline_def, types

    files = [f"{task['root']}/{index[i][0]}.jpg" for i in ids]
    labels = [index[i][1] for i in ids]

    @pipeline_def(
        batch_size=task["batch"],
        num_threads=task["workers"],
        device_id=None,
        prefetch_queue_depth=task["prefetch"],
        seed=1,
    )
    def training():
        data, label = fn.readers.file(files=files, labels=labels)
        images = fn.decoders.image_random_crop(
            data,
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            num_attempts=10,
        )
        images = fn.resize(
            images,
            resize_x=224,
            resize_y=224,
            interp_type=types.INTERP_LINEAR,
            antialias=False,
        )
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="CHW",
            mirror=fn.random.coin_flip(),
            mean=MEAN.tolist(),
            std=STD.tolist(),
        )
        return images, label

    pipe = training()
    pipe.build()

    def batches():
        for _ in range(len(ids) // task["batch"]):
            images, label = pipe.run()
            yield np.asarray(images.as_tensor()), np.asarray(label.as_tensor())

    return batches()


# -- the loop ----------------------------------------------------------------------------------


LOOPS = {
    "torch": torch_loop,
    "dali": dali_loop,
    "webdataset": webdataset_loop,
    "spdl": spdl_loop,
    "grain": grain_loop,
}


def meet(word):
    print(word, flush=True)
    if not sys.stdin.readline():
        sys.exit(1)


def main():
    task = json.loads(Path(sys.argv[1]).read_text())
    ids = np.load(task["ids"])
    meet("ready")
    index = []
    with open(task["index"]) as lines:
        for line in lines:
            key, label = line.split("\t")[:2]
            index.append((key, int(label)))
    batches = LOOPS[task["loader"]](task, index, ids)
    meet("barrier")
    done, samples = [], 0
    began = time.perf_counter()
    for _ in range(len(ids) // task["batch"]):
        _, labels = next(batches)
        done.append(time.perf_counter())
        samples += len(labels)
    meet("barrier")
    print(json.dumps({"began_s": began, "done_s": done, "samples": samples}), flush=True)
    batches.close()


if __name__ == "__main__":
    main()
