"""Input loops as a competent user writes them by hand; nothing of iobench is imported here.

``python benchmarks/handwritten.py TASK.json`` reads the listed samples and prints when its loop
began and when each step was done, by CLOCK_MONOTONIC.  TASK.json: loader, format, root, index
(samples.tsv), ids (.npy), batch, workers and prefetch.  It prints a line and waits for one before
it opens the data, before its loop and after it.  ``benchmarks/by_hand.py`` runs it.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tarfile
import time
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


class Batches:
    """A map-style dataset that returns a whole batch, built in shared memory."""

    def __init__(self, source, size):
        self.source, self.size, self.opened = source, size, False

    def __len__(self):
        return self.size

    def __getitems__(self, ids):
        import cv2
        import simplejpeg
        import torch

        if not self.opened:
            cv2.setNumThreads(1)
            self.source.open()
            self.opened = True
        storage = torch.UntypedStorage._new_shared(len(ids) * 3 * 224 * 224 * 4)
        images = torch.empty(0).set_(storage, 0, (len(ids), 3, 224, 224))
        rows = images.numpy()
        labels = []
        for row, i in zip(rows, ids):
            data, label = self.source.read(i)
            labels.append(label)
            pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
            top, left, height, width = crop(*pixels.shape[:2])
            pixels = cv2.resize(pixels[top : top + height, left : left + width], (224, 224))
            if random.random() < 0.5:
                pixels = cv2.flip(pixels, 1)
            for plane, table, out in zip(cv2.split(pixels), TABLES, row):
                cv2.LUT(plane, table, dst=out)
        return images, torch.tensor(labels)


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
    import torch.utils.data

    source = {"jpeg": Jpegs, "lmdb": Lmdb, "hdf5": Hdf5, "tar": Tar}[task["format"]](task, index)
    size = task["batch"]
    order = [ids[k : k + size].tolist() for k in range(0, len(ids), size)]
    import cv2  # noqa: F401  (before the workers fork)
    import simplejpeg  # noqa: F401

    gate = torch.multiprocessing.Event()  # workers do not begin before the loop
    iterator = iter(
        torch.utils.data.DataLoader(
            Batches(source, len(ids)),
            batch_sampler=order,
            collate_fn=same,
            num_workers=task["workers"],
            prefetch_factor=task["prefetch"],
            worker_init_fn=lambda worker: gate.wait(),
        )
    )

    def batches():
        gate.set()
        yield from iterator

    return batches()


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
    loop = dali_loop if task["loader"] == "dali" else torch_loop
    batches = loop(task, index, ids)
    meet("barrier")
    done, samples = [], 0
    began = time.perf_counter()
    for _ in range(len(ids) // task["batch"]):
        _, labels = next(batches)
        done.append(time.perf_counter())
        samples += len(labels)
    meet("barrier")
    print(json.dumps({"began_s": began, "done_s": done, "samples": samples}), flush=True)


if __name__ == "__main__":
    main()
