"""Recipes: what is shipped is valid, what is not is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.core.errors import DatasetError
from iobench.data import recipes


def written(folder: Path, **changes: object) -> Path:
    text = (recipes.FOLDER / "smoke.toml").read_text()
    lines = [line for line in text.splitlines() if line.split(" = ")[0] not in changes]
    lines += [f"{key} = {value}" for key, value in changes.items() if value is not None]
    path = folder / "mine.toml"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("name", recipes.names())
def test_shipped_recipes_are_valid(name: str) -> None:
    assert recipes.load(name).name == name


def test_the_recipes_of_the_field_are_there() -> None:
    means = {name: recipes.load(name).mean_bytes for name in recipes.names()}
    assert means["imagenet-like"] == 110_000
    assert means["cifar-like"] == 3_000
    assert means["large"] == 2_828_486
    assert "smoke" in means


def test_a_recipe_of_one_s_own(tmp_path: Path) -> None:
    assert recipes.load(written(tmp_path, classes=7)).classes == 7
    assert recipes.load(str(written(tmp_path))).name == "mine"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"colour": 1}, "unknown key 'colour' (value 1); allowed: classes, fixed, height"),
        ({"samples": 0}, "samples = 0; allowed: a whole number, at least 1"),
        ({"samples": '"many"'}, "samples = 'many'"),
        ({"subsampling": '"422"'}, "subsampling = '422'; allowed: 420, 444"),
        ({"mean_bytes": None}, "mean_bytes is missing; give a whole number"),
        ({"mean_bytes": 50_000}, "mean_bytes must lie between"),
        ({"width": 4000}, "width and height must lie between"),
        ({"fixed": "true"}, "a fixed resolution goes with"),
    ],
)
def test_a_wrong_recipe_is_named(tmp_path: Path, changes: dict, told: str) -> None:
    with pytest.raises(DatasetError) as caught:
        recipes.load(written(tmp_path, **changes))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        DatasetError,
        match=r"did you mean 'imagenet-like'\? allowed: cifar-like, imagenet-like, large",
    ):
        recipes.load("imagenet")


def test_broken_toml_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("samples = = 3")
    with pytest.raises(DatasetError, match="line 1"):
        recipes.load(path)
