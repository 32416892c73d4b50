"""One meaning of a pixel: every loader and decoder, on every odd file that a user may have.

A loader is audited by being registered.  Those of other stacks run in the stack's own Python.
`make bench-pixels` reads every stored form.  Here is one of each kind that somebody decodes in its
own way: an encoded picture is the same bytes in all, as the loaders' contract tests.  The largest
picture has two megapixels, not 24.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import odd_files, pixels
from iobench.core import registry
from tests import capabilities

# the audit takes minutes
pytestmark = [pytest.mark.system, pytest.mark.breadth, pytest.mark.timeout(1800)]

LARGE = (1000, 2000)
FORMS = ("lmdb", "tar", "lmdb-raw", "hdf5-raw", "hdf5-float")
Audit = tuple[pixels.Corpus, list[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return pixels.audit(tmp_path_factory.mktemp("pixels"), FORMS, LARGE)


def test_every_loader_gives_the_reference_pixels(audit: Audit) -> None:
    corpus, loaders, _ = audit
    assert pixels.problems(loaders, corpus) == []


@pytest.mark.parametrize("name", [n for n in registry.names("loaders") if n != "null"])
def test_every_loader_was_audited(audit: Audit, name: str) -> None:
    backend = registry.load("loaders", name)
    if backend.stack == "caffe":
        capabilities.need("caffe")
    elif name in ("torch", "dali", "webdataset"):
        capabilities.need(name)
    seen = [row for row in audit[1] if row["pipeline"].startswith(f"{name}:")]
    forms = {row["pipeline"].partition(":")[2] for row in seen if "differences" in row}
    assert ("jpeg" if backend.formats is None else min(backend.formats & {"jpeg", "tar"})) in forms
    corpus = audit[0]
    for row in seen:
        assert "absent" in row or len(row["differences"]) == len(corpus.keys)


def test_a_loader_that_turns_pictures_was_given_upright_copies(audit: Audit) -> None:
    for row in audit[1]:
        if "data" in row:
            turns = registry.load("loaders", row["pipeline"].partition(":")[0]).turns
            assert row["data"] == ("copied" if turns else "kept")


def test_every_library_decodes_what_is_used_alike(audit: Audit) -> None:
    corpus, _, libraries = audit
    used = {*corpus.keys, *corpus.flat}
    for row in libraries:
        gaps = {key: gap for key, gap in row["differences"].items() if key in used}
        far = {k: g for k, g in gaps.items() if isinstance(g, str) or g > pixels.TOLERANCE}
        assert far == {}, row["decoder"]


def test_no_file_is_lost(audit: Audit) -> None:
    corpus = audit[0]
    names = len(odd_files.NAMES) + len(odd_files.TWISTED)
    every = len(odd_files.corpus(LARGE)) + names
    assert len(corpus.keys) + len(corpus.flat) + len(corpus.refused) == every


#: A loader that decodes as OpenCV does by itself: pictures are turned by their orientation.
TURNING = """
from iobench.backends.loaders import threads
from iobench.core import transforms
from iobench.core.members import LoaderBackend


def turned(data, **how):
    import cv2
    import numpy as np

    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


class Turning(threads.ThreadsLoader):
    def batches(self):
        ours, transforms.decode = transforms.decode, turned
        try:
            yield from super().batches()
        finally:
            transforms.decode = ours


BACKEND = LoaderBackend(Turning, "turns", formats=frozenset({"jpeg"}))
"""


def test_a_new_loader_is_audited_and_turned_pictures_are_found(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaders").mkdir()
    (tmp_path / "loaders" / "turning.py").write_text(TURNING)
    monkeypatch.setenv("IOBENCH_PLUGINS", str(tmp_path))
    corpus = audit[0]
    (row,) = pixels.through_loaders(corpus, ["turning"], ["torch"])
    found = [line.split(": ")[1].split(" differs")[0] for line in pixels.problems([row], corpus)]
    assert {f"exif-{n}" for n in range(2, 9)} <= set(found)
    assert all("exif" in key for key in found)
