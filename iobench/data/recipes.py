"""Recipes of synthetic datasets: ``datasets/<name>.toml``, validated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pydantic

from iobench.core import explain
from iobench.core.errors import DatasetError, near, shown
from iobench.data import toml_files

#: In an installed package; in a clone, they are in its ``datasets/``.
_INSTALLED = Path(__file__).parent / "shipped"
FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "datasets"


class Recipe(pydantic.BaseModel):
    """What a synthetic dataset looks like; every key of a recipe file but its name.

    File sizes follow a log-normal with ``mean_bytes`` and ``sd_bytes``, truncated to
    ``min_bytes..max_bytes`` (the truncated distribution has the mean that was asked for).
    Resolutions vary around ``width`` x ``height`` pixels unless ``fixed``.  ``roughness`` is the
    amplitude of the finest octave, in per cent of the natural-image spectrum's.
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
        low, high = sorted((self.width, self.height))
        if not self.min_side <= low <= high <= self.max_side:
            raise ValueError("width and height must lie between min_side and max_side")
        if (self.subsampling, self.roughness) != (("444", 200) if self.fixed else ("420", 50)):
            raise ValueError(
                'a fixed resolution goes with subsampling "444" and roughness 200, a varying one '
                'with "420" and 50 (the size model knows no other pairs)'
            )
        return self


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
