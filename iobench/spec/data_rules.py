"""The samples that there will be: whether the cases can be run on them, before any are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from iobench.core import dataset as datasets
from iobench.core import transforms
from iobench.core.cases import Case, Dataset
from iobench.core.errors import SpecError
from iobench.data import convert, make, recipes, sides
from iobench.spec.schema import DatasetSpec


class Samples(NamedTuple):
    """What is known of a dataset: how many samples, and their images' shortest side in pixels.

    ``fixed``: all are of this size.  0: not known before the samples are looked at.  ``smallest``:
    file of the image with that side.
    """

    number: int
    side: int = 0
    fixed: bool = False
    smallest: str = ""


def foreseen(wanted: DatasetSpec, data: Path | None) -> Samples:
    """Return what is known of the dataset that a spec asks for.

    ``data``: the user's own folder, in place of the recipe.  Raises DatasetError for a recipe that
    is unknown or cannot make so many samples.
    """
    if data is None:
        sizes = wanted.mean_bytes, wanted.sd_bytes
        recipe = recipes.sized(recipes.load(wanted.recipe), *sizes)
        make.check_count(recipe, wanted.samples)
        return _of_recipe(wanted.samples, recipe.model_dump())
    if (data / datasets.MARKER).exists():
        return of_dataset(datasets.locate(data))
    return Samples(0)


def of_dataset(dataset: Dataset) -> Samples:
    """Return what is known of a dataset that is there."""
    return _of_recipe(dataset.samples, dataset.recipe)


def looked_at(cases: Sequence[Case], dataset: Dataset) -> Samples:
    """Return the same; images of the user's are looked at, where a case needs their size."""
    known = of_dataset(dataset)
    needed = any(transforms.transform(c.transform).least > 1 for c in cases)
    if known.side or not needed or all(c.content in convert.SIDES for c in cases):
        return known
    side, name = sides.shortest(dataset)
    return known._replace(side=side, smallest=name)


def _of_recipe(count: int, recipe: Mapping[str, Any]) -> Samples:
    pixels = [recipe[key] for key in ("width", "height", "min_side") if key in recipe]
    fixed = bool(recipe.get("fixed"))
    return Samples(count, min(pixels[:2] if fixed else pixels, default=0), fixed)


def check(cases: Sequence[Case], samples: Samples) -> None:
    """Raise SpecError for a case that the samples are too few or too small for."""
    for case in cases:
        if samples.number:
            _check_count(case, samples.number)
        if side := _side(case, samples):
            _check_side(case, side, samples.smallest)


def _check_count(case: Case, count: int) -> None:
    if case.samples > count:
        raise SpecError(
            f"case {case.label}: samples = {case.samples}; allowed: at most {count}, the dataset's "
            "(dataset.samples, or what --data holds)"
        )
    share = (case.samples or count) // case.world_size
    if share < case.batch:
        raise SpecError(
            f"case {case.label}: batch = {case.batch}, and {share} samples a rank are no whole "
            f"batch of {case.batch}; use a smaller batch or more samples (the dataset has {count})"
        )


def _side(case: Case, samples: Samples) -> int:
    """Return the shortest side of the images that a case's loader decodes; 0: not known."""
    usual = convert.SIDES.get(case.content, 0)
    return samples.side if not usual or (samples.fixed and case.content == "raw") else usual


def _check_side(case: Case, side: int, smallest: str) -> None:
    chosen = transforms.transform(case.transform)
    resized = [case.loader_options.get(key) for key in ("new_height", "new_width")]
    if all(resized):
        side = min(int(str(value)) for value in resized)
    if 0 < side < chosen.least:
        which = f" ({smallest})" if smallest else ""
        fits = [t.name for t in transforms.TRANSFORMS.values() if t.least <= side]
        raise SpecError(
            f"case {case.label}: transform = {case.transform!r}, and the dataset has images with a "
            f"side of {side} pixels{which}, less than {chosen.least}; allowed: "
            f"{', '.join(sorted(fits))}, or a dataset of larger images"
        )
