"""Recipes of synthetic datasets: ``datasets/<name>.toml``, validated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pydantic

from iobench.core import explain
from iobench.core.errors import DatasetError, near, shown
from iobench.data import toml_files
from iobench.data.records import LEAST_BYTES

#: In an installed package; in a clone, they are in its ``datasets/``.
_INSTALLED = Path(__file__).parent / "shipped"
FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "datasets"


class Recipe(pydantic.BaseModel):
    """What a synthetic dataset looks like; every key of a recipe file but its name.

    File sizes follow a log-normal with ``mean_bytes`` and ``sd_bytes``, truncated to
    ``min_bytes..max_bytes`` (the truncated distribution has the mean that was asked for).
    Resolutions vary around ``width`` x ``height`` pixels unless ``fixed``.  ``roughness`` is the
    amplitude of the finest octave, in per cent of the natural-image spectrum's.  ``opaque``: only
    the size counts (:mod:`iobench.data.records`).
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )

    name: str
    summary: str
    samples: int = pydantic.Field(ge=1)
    seed: int = pydantic.Field(1, ge=0)
    classes: int = pydantic.Field(ge=1, le=10_000)
    mean_bytes: int = pydantic.Field(ge=1000)
    sd_bytes: int = pydantic.Field(ge=1)
    min_bytes: int = pydantic.Field(ge=1000)
    max_bytes: int = pydantic.Field(ge=1000)
    width: int = pydantic.Field(ge=16, le=4096)
    height: int = pydantic.Field(ge=16, le=4096)
    min_side: int = pydantic.Field(ge=16)
    max_side: int = pydantic.Field(le=4096)
    fixed: bool = False
    opaque: bool = False
    subsampling: Literal["420", "444"] = "420"
    roughness: Literal[50, 200] = 50

    @property
    def chroma_step(self) -> int:
        """Luma pixels for one of chroma, in either direction."""
        return 2 if self.subsampling == "420" else 1

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Recipe:
        if not self.min_bytes < self.mean_bytes < self.max_bytes:
            raise ValueError("mean_bytes must lie between min_bytes and max_bytes")
        if self.opaque and self.min_bytes < LEAST_BYTES:
            raise ValueError(f"an opaque record has at least {LEAST_BYTES} bytes (min_bytes)")
        low, high = sorted((self.width, self.height))
        if not self.min_side <= low <= high <= self.max_side:
            raise ValueError("width and height must lie between min_side and max_side")
        if (self.subsampling, self.roughness) != (("444", 200) if self.fixed else ("420", 50)):
            raise ValueError(
                'a fixed resolution goes with subsampling "444" and roughness 200, a varying one '
                'with "420" and 50 (the size model knows no other pairs)'
            )
        return self


def sized(recipe: Recipe, mean_bytes: int, sd_bytes: int) -> Recipe:
    """Return an opaque recipe with other sizes, of at most three standard deviations; 0: its own.

    Raises DatasetError for another recipe: what its pictures can be encoded to is in its file.
    """
    if not mean_bytes:
        return recipe
    if not recipe.opaque:
        raise DatasetError(
            f"recipe {recipe.name!r} has sizes of its own; dataset.mean_bytes is for one with "
            "opaque = true, such as 'records'"
        )
    spread = max(3 * sd_bytes, 10)
    sizes = {
        "mean_bytes": mean_bytes,
        "sd_bytes": max(sd_bytes, 1),
        "min_bytes": max(mean_bytes - spread, min(LEAST_BYTES, mean_bytes - 1)),
        "max_bytes": mean_bytes + spread,
    }
    try:
        return Recipe.model_validate({**recipe.model_dump(), **sizes})
    except pydantic.ValidationError as error:
        raise DatasetError(f"dataset.mean_bytes: {explain.first(error, Recipe)}") from None


def identity(recipe: Recipe) -> dict[str, Any]:
    """Return what tells recipes apart; a key that came later only where it is set."""
    return recipe.model_dump(exclude=None if recipe.opaque else {"opaque"})


def names() -> list[str]:
    """Return the recipes that are shipped, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str | Path) -> Recipe:
    """Return a recipe by its name in ``datasets/`` or by the path of a ``.toml`` file.

    Raises DatasetError that names the file, the key, its value and what is allowed.
    """
    path = Path(name) if str(name).endswith(".toml") else FOLDER / f"{name}.toml"
    if not os.path.isfile(path):
        raise DatasetError(
            f"recipe {shown(str(name))} is unknown{near(str(name), names())}, or the path of a "
            ".toml file"
        )
    text = toml_files.read(path, f"recipe {path}", DatasetError)
    document = toml_files.parse(text, f"recipe {path}", DatasetError)
    try:
        return Recipe.model_validate({"name": path.stem, **document})
    except pydantic.ValidationError as error:
        raise DatasetError(f"recipe {path}: {explain.first(error, Recipe)}") from None
