"""Holds the pixels of every loader that this Python can import against reference pixels.

    python -m benchmarks.pixel_rows AUDIT.json [LOADER ...]

Standard library, NumPy and iobench's worker side only, Python 3.9: it is run by each stack's own
interpreter.  ``AUDIT.json`` is written by :mod:`benchmarks.pixels`; the answer is JSON on standard
output: one entry a pipeline, with the difference of each sample or the reason why there is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import numpy as np

from iobench.core import dataset as datasets
from iobench.core import registry, transforms
from iobench.core.cases import Case, Dataset
from iobench.core.errors import BackendUnavailable, IobenchError
from iobench.core.members import LoaderBackend
from iobench.core.order import SEQUENCES
from iobench.core.protocols import LoadRequest

#: Options by which a loader takes another reader or decoder, beside its defaults.
VARIANTS: Mapping[str, Tuple[Mapping[str, Any], ...]] = {
    "dali": ({}, {"reader": "external"}, {"device": "mixed"}),
}
#: Loaders whose channels are blue, green, red.
BLUE_FIRST = ("native",)
#: Windows of a picture that may all be tried; of more, those whose pixels at these places, the
#: corner among them, are within ``NEAR`` grey levels.
FEW, NEAR = 64, 4
PROBES = ((0, 0), (0, 200), (200, 0), (200, 200), (97, 101), (31, 7))
SEED = 11
TRANSFORMS = ("crop224", "rrc224")


class Pipeline(NamedTuple):
    """One loader, with options, over one stored form, by one decoder if it takes one."""

    loader: str
    form: str
    options: Mapping[str, Any]
    decoder: str = Case.decoder

    @property
    def name(self) -> str:
        given = "".join(f" {value}" for value in self.options.values())
        by = "" if self.decoder == Case.decoder else f" {self.decoder}"
        return f"{self.loader}:{self.form}{given}{by}"


def pipelines(form_names: List[str]) -> Iterator[Pipeline]:
    """Yield every pipeline over these stored forms whose loader reads data and runs here."""
    for name in registry.names("loaders"):
        backend = registry.load("loaders", name)
        if name == "null" or any(not registry.importable(module) for module in backend.requires):
            continue
        for form in form_names:
            needs = registry.load("formats", form.partition("-")[0]).requires
            readable = form in backend.native or all(map(registry.importable, needs))
            if readable and (backend.formats is None or form in backend.formats):
                for options in VARIANTS.get(name, ({},)):
                    yield Pipeline(name, form, options)
        if backend.decodes:
            others = [n for n in registry.names("decoders") if n != Case.decoder]
            here = [n for n in others if not registry.unavailable("decoders", n)]
            form = "jpeg" if backend.formats is None or "jpeg" in backend.formats else "tar"
            yield from (Pipeline(name, form, {}, decoder) for decoder in here)


def request(found: Dataset, pipeline: Pipeline, transform: str) -> LoadRequest:
    """Return a request for every sample, one a batch."""
    able = registry.load("loaders", pipeline.loader).orders.get(pipeline.form, SEQUENCES)
    index = datasets.load_index(found)
    name = pipeline.form.partition("-")[0]
    return LoadRequest(
        dataset=found,
        format_name=name,
        format=registry.load("formats", name).make(),
        root=datasets.form_root(found, pipeline.form),
        ids=np.arange(found.samples),
        labels=index.labels,
        sizes=datasets.stored_sizes(found, pipeline.form, index.sizes),
        batch=1,
        workers=1,
        order="stored" if "stored" in able else "shards:2",
        transform=transform,
        decoder=pipeline.decoder,
        seed=SEED,
    )


def levels(found: Dataset, pipeline: Pipeline, transform: str) -> np.ndarray:
    """Return what a pipeline makes of each sample, by id, in grey levels.

    (samples, height, width, 3) float32 RGB: mean and deviation are taken back.
    """
    made = registry.load("loaders", pipeline.loader).make(
        request(found, pipeline, transform), **pipeline.options
    )
    rows = {}
    try:
        for batch in made.batches():
            data = batch.data.cpu() if hasattr(batch.data, "cpu") else batch.data
            rows[int(batch.ids[0])] = np.array(data)[0]
            del data, batch
    finally:
        made.close()
    planes = np.stack([rows[i] for i in range(found.samples)])
    if pipeline.loader in BLUE_FIRST:
        planes = planes[:, ::-1]
    chosen = transforms.transform(transform)
    std, mean = (np.array(v, np.float32) for v in (chosen.std, chosen.mean))
    return planes.transpose(0, 2, 3, 1) * std + mean


def from_windows(window: np.ndarray, image: np.ndarray) -> float:
    """Return the least distance of a window to any window of the image, mirrored or not."""
    side = window.shape[0]
    height, width = image.shape[0] - side + 1, image.shape[1] - side + 1
    best = float("inf")
    for flip in (1, -1):
        seen = window[:, ::flip]
        few = height * width <= FEW
        places = np.argwhere(np.ones((height, width))) if few else _fitting(seen, image)
        least = np.max([_gaps_at(seen, image, places, probe) for probe in PROBES], axis=0)
        for k in least.argsort():  # a window is at least so far away as its probes are
            if least[k] >= best:
                break
            top, left = places[k]
            gap = np.abs(image[top : top + side, left : left + side] - seen)
            best = min(best, float(gap.max()))
            if best < 0.01:
                return 0.0
    return round(best, 2)


def _gaps_at(
    window: np.ndarray, image: np.ndarray, places: np.ndarray, probe: Tuple[int, int]
) -> np.ndarray:
    """Return how far a pixel of the window is from the image's, with its corner at each place."""
    y, x = probe
    gaps: np.ndarray = np.abs(image[places[:, 0] + y, places[:, 1] + x] - window[y, x]).max(axis=1)
    return gaps


def _fitting(window: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return the places (top, left) in the image at which a few pixels of the window fit."""
    side = window.shape[0]
    height, width = image.shape[0] - side + 1, image.shape[1] - side + 1
    red, corner = image[:height, :width, 0], float(window[0, 0, 0])
    places = np.argwhere((red >= max(corner - NEAR, 0)) & (red <= min(corner + NEAR, 255)))
    for probe in PROBES:
        places = places[_gaps_at(window, image, places, probe) <= NEAR]
    return places


class Audit:
    """The datasets and the reference pixels that the pipelines are held against.

    ``kept``: files as they are, read in place.  ``copied``: the copies that a run makes of them.
    ``twins``: the same samples without what is odd.  ``flat``: of one of ``colours`` each.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        names = ("kept", "copied", "twins", "flat")
        self.data = {name: datasets.locate(Path(document[name])) for name in names}
        self.forms: List[str] = document["forms"]
        self.colours = np.array(document["colours"], np.float32)
        self._pixels = Path(document["pixels"])

    def judge(self, pipeline: Pipeline) -> Dict[str, Any]:
        """Return the differences of a pipeline by sample id, or why there are none."""
        backend: LoaderBackend = registry.load("loaders", pipeline.loader)
        decodes = "-" not in pipeline.form  # else pixels are stored, which nothing can turn
        able = set(backend.transforms or TRANSFORMS) & set(TRANSFORMS if decodes else ["crop224"])
        answer: Dict[str, Any] = {"pipeline": pipeline.name, "data": self._data(backend)}
        try:
            gaps = np.zeros(self.data["kept"].samples)
            for transform in sorted(able):
                seen = levels(self.data[answer["data"]], pipeline, transform)
                if transform == "crop224":
                    gaps = np.maximum(gaps, self._from_references(pipeline, seen))
                if decodes and transform == max(able):  # one of them shows what is turned
                    twins = levels(self.data["twins"], pipeline, transform)
                    gaps = np.maximum(gaps, np.abs(seen - twins).max(axis=(1, 2, 3)))
            answer["differences"] = gaps.round(2).tolist()
            if "rrc224" in able:
                answer["flat"] = self._flat(pipeline)
        except BackendUnavailable as error:
            answer["absent"] = str(error)
        except IobenchError as error:
            answer["failed"] = str(error)
        return answer

    def _data(self, backend: LoaderBackend) -> str:
        return "copied" if backend.turns else "kept"

    def _from_references(self, pipeline: Pipeline, seen: np.ndarray) -> np.ndarray:
        """Return how far each sample is from any window of its reference."""
        stored = self._pixels / ("resized" if "-" in pipeline.form else "whole")
        return np.array(
            [
                from_windows(window, np.load(stored / f"{i}.npy", mmap_mode="r"))
                for i, window in enumerate(seen)
            ]
        )

    def _flat(self, pipeline: Pipeline) -> List[float]:
        seen = levels(self.data["flat"], pipeline, "rrc224")
        gaps = np.abs(seen - self.colours[:, None, None]).max(axis=(1, 2, 3))
        return [round(float(gap), 2) for gap in gaps]


def main(argv: List[str]) -> int:
    audit = Audit(json.loads(Path(argv[0]).read_text()))
    wanted = [p for p in pipelines(audit.forms) if p.loader in argv[1:] or not argv[1:]]
    rows = [audit.judge(pipeline) for pipeline in wanted]
    sys.stdout.write(json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":  # an external source's processes import this again
    sys.exit(main(sys.argv[1:]))
