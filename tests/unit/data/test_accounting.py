"""Every file of a user's tree is accounted for, in the same words wherever it is said."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import odd_files
from iobench.cli.main import cli
from iobench.core.cases import Dataset
from iobench.core.errors import DatasetError
from iobench.data import accounting
from iobench.data.accounting import LEFT_OUT, NOTED, Accounting, FileNote
from iobench.data.adopt import adopt
from iobench.data.tree import scan
from iobench.report.progress import Reporter
from iobench.report.screen import Screen
from tests.build.trees import picture
from tests.build.users import as_nobody


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for folder in ("a", "b"):
        (root / folder).mkdir(parents=True)
        for i in range(3):
            (root / folder / f"{i}.jpg").write_bytes(picture(i + 10 * (folder == "b")))
    return root


def adopted(tree: Path, out: Path, **changes: Any) -> Dataset:
    settings = {"max_samples": 100, "max_bytes": 1 << 30, "seed": 1, **changes}
    return adopt(tree, out, **settings)


def counted(found: Dataset) -> Accounting:
    result = accounting.of(found)
    assert result is not None
    assert result.found == result.used + result.not_drawn + sum(result.left_out.values())
    rows = [row.kind for row in accounting.read(found)]
    for kinds in (result.left_out, result.noted):
        assert all(rows.count(kind) == n for kind, n in kinds.items())
    assert len(rows) == sum(result.left_out.values()) + sum(result.noted.values())
    return result


def kinds(rows: list[FileNote]) -> dict[str, str]:
    return {row.file: row.kind for row in rows}


def test_a_plain_tree_is_used_whole(tree: Path, tmp_path: Path) -> None:
    found = counted(adopted(tree, tmp_path / "out"))
    assert found == Accounting(6, 6, 0, {}, {})


def test_what_is_not_drawn_is_counted(tree: Path, tmp_path: Path) -> None:
    found = adopted(tree, tmp_path / "out", max_samples=4)
    assert counted(found) == Accounting(6, 4, 2, {}, {})
    assert ("not drawn, not looked at", 2) in [t[:2] for t in accounting.table(counted(found))]


def test_links_are_followed_and_named(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jpg"
    outside.write_bytes(picture(50))
    (tree / "a" / "link.jpg").symlink_to("0.jpg")
    (tree / "a" / "away.jpg").symlink_to(outside)
    (tree / "c").symlink_to("b")
    os.link(tree / "b" / "1.jpg", tree / "b" / "hard.jpg")
    found = adopted(tree, tmp_path / "out")
    result = counted(found)
    assert (result.used, result.left_out) == (13, {})
    assert result.noted == {"linked": 5, "beyond": 1, "again": 6}
    assert kinds(accounting.read(found))["a/away.jpg"] == "beyond"


def test_loops_pipes_and_hidden_folders_are_named(tree: Path, tmp_path: Path) -> None:
    (tree / "a" / "up").symlink_to("..")
    (tree / "self").symlink_to(".")
    (tree / "a" / "broken.jpg").symlink_to("nowhere")
    (tree / "a" / "round.jpg").symlink_to("round.jpg")
    os.mkfifo(tree / "a" / "pipe.jpg")
    (tree / ".cache").mkdir()
    (tree / ".cache" / "x.jpg").write_bytes(picture(1))
    (tree / "README").write_text("mine")
    (tree / "b" / "mem.jpg").symlink_to("/proc/self/mem")  # regular, and reading it fails
    found = adopted(tree, tmp_path / "out")
    expected = {
        "a/up": "loop", "self": "loop", "a/broken.jpg": "absent", "a/round.jpg": "absent",
        "a/pipe.jpg": "special", ".cache": "hidden", "README": "outside",
        "b/mem.jpg": "unreadable",
    }  # fmt: skip
    assert kinds(accounting.read(found)) == expected
    assert counted(found).found == 6 + len(expected)


def test_folders_and_files_that_may_not_be_read_are_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "tree")
        for name in ("a", "a/deep", "closed"):
            (root / name).mkdir(parents=True)
            (root / name / "x.jpg").write_bytes(picture(1))
        os.chmod(folder, 0o755)
        for name in ("a/deep", "closed"):
            (root / name).chmod(0)
        (root / "a" / "mine.jpg").write_bytes(picture(2))
        (root / "a" / "mine.jpg").chmod(0)
        out = Path(folder, "out")
        out.mkdir(mode=0o777)
        out.chmod(0o777)
        try:
            with as_nobody():
                found = adopted(root, out / "set")
        finally:
            for name in ("a/deep", "closed"):
                (root / name).chmod(0o755)
        assert kinds(accounting.read(found)) == {
            "a/deep": "closed", "closed": "closed", "a/mine.jpg": "unreadable",
        }  # fmt: skip
        assert counted(found).used == 1
        shutil.rmtree(out)


def test_a_tree_of_closed_folders_says_so() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        closed = Path(folder, "tree", "a")
        closed.mkdir(parents=True)
        closed.chmod(0)
        try:
            with as_nobody(), pytest.raises(DatasetError, match="1 folders cannot be read"):
                scan(Path(folder, "tree"))
        finally:
            closed.chmod(0o755)


def test_a_file_without_end_is_not_read_into_memory(tree: Path, tmp_path: Path) -> None:
    for name, head in (("zeros.jpg", b""), ("photo.jpg", b"\xff\xd8")):
        (tree / "a" / name).write_bytes(head)
        os.truncate(tree / "a" / name, 1 << 40)
    (tree / "a" / "kernel.jpg").symlink_to("/proc/kcore")  # 128 TB, where root may read it
    rows = kinds(accounting.read(adopted(tree, tmp_path / "out", in_place=True)))
    assert rows.pop("a/kernel.jpg") in ("other", "unreadable", "absent")
    assert rows == {"a/zeros.jpg": "other", "a/photo.jpg": "size"}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, dict[str, odd_files.Odd]]:
    folder = tmp_path_factory.mktemp("odd")
    files = odd_files.corpus(large=(300, 400))
    placed = odd_files.write(folder / "tree", files)
    return adopted(folder / "tree", folder / "out", max_samples=1000), placed


def test_odd_files_are_used_or_named_and_none_is_lost(
    odd: tuple[Dataset, dict[str, odd_files.Odd]],
) -> None:
    found, placed = odd
    assert counted(found).found == len(placed)
    rows = kinds([row for row in accounting.read(found) if row.kind in LEFT_OUT])
    left_out = {placed[file].key: kind for file, kind in rows.items()}
    named = {
        "cmyk-adobe": "cmyk", "cmyk": "cmyk", "ycck": "cmyk", "12-bit": "depth",
        "16-bit-lossless": "coding", "arithmetic": "coding", "no-height": "header",
        "huge": "size", "truncated": "cut", "truncated-and-closed": "cut", "zeros-inside": "cut",
        "no-end": "cut",
        "empty": "empty", "text": "other", "png-named-jpeg": "other", "gif-named-jpeg": "other",
        "bmp-named-jpeg": "other", "tiff-named-jpeg": "other", "webp-named-jpeg": "other",
        "png-16-bit": "other",
    }  # fmt: skip
    names = {f"name {name!r}": "name" for name in odd_files.TWISTED}
    assert left_out == {**named, **names}


def test_pictures_with_an_orientation_are_counted(
    odd: tuple[Dataset, dict[str, odd_files.Odd]],
) -> None:
    found, placed = odd
    rows = [row for row in accounting.read(found) if row.kind == "turned"]
    turned = {placed[row.file].key for row in rows}
    assert {f"exif-{n}" for n in range(2, 9)} | {"exif-twice-6-3", "grey-exif-6"} <= turned
    assert not {"plain", "exif-1", "exif-value-9", "icc"} & turned


def test_data_info_names_every_kind_and_file(
    odd: tuple[Dataset, dict[str, odd_files.Odd]],
) -> None:
    found, _ = odd
    shown = CliRunner().invoke(cli, ["data", "info", found.root])
    assert shown.exit_code == 0, shown.output
    result = counted(found)
    for kind in result.left_out:
        assert f"files left out: {LEFT_OUT[kind].words}: {result.left_out[kind]}" in shown.output
        assert LEFT_OUT[kind].remedy in shown.output
    for kind in result.noted:
        assert f"files used, {NOTED[kind].words}: {result.noted[kind]}" in shown.output
    assert not [c for c in shown.output if ord(c) < 32 and c != "\n"], "a name acts on a terminal"
    answer = CliRunner().invoke(cli, ["data", "info", "--json", found.root])
    facts = json.loads(answer.output)
    assert facts["files"] == accounting.to_json(result)
    assert len(facts["left_out"]) == sum(result.left_out.values())


def test_the_line_of_a_run_has_the_counts_and_where_the_rest_is() -> None:
    found = Accounting(1000, 900, 40, {"cut": 50, "cmyk": 7, "other": 2, "empty": 1}, {"linked": 3})
    assert accounting.line(found, "/t", "/d") == (
        "files of /t: 900 of 1,000 used; 40 not drawn; 60 left out (50 cut short or damaged, 7 "
        "CMYK or YCCK colours, 2 not a JPEG); 3 found through a symbolic link; all of "
        "them: `iobench data info /d`"
    )


def test_a_path_with_brackets_is_said_as_it_is() -> None:
    console = Screen(file=io.StringIO(), width=200)
    Reporter(console).say("files of /a[/b]c[red]: 1 of 1 used")
    assert console.file.getvalue() == "files of /a[/b]c[red]: 1 of 1 used\n"


def test_the_page_has_every_kind() -> None:
    page = (Path(__file__).parents[3] / "docs" / "files.md").read_text()
    for kind in (*LEFT_OUT.values(), *NOTED.values()):
        assert f"\n| {kind.words} | " in page
