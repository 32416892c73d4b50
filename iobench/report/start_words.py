"""What a job's first minute costs, as cells and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.analysis.scale_results import StartResult
from iobench.equations.stats import Interval
from iobench.report import numbers

HEADS = ("case", "software", "seconds", "launch", "Python", "imports", "fetched MB")
_FOOTNOTE = (
    "Seconds until every rank has imported its libraries, with the 95 % interval; launch: launcher "
    "and runtime. Cold: the software's files were evicted on every node, but not the runtime's "
    "programs and the system's libraries. Fetched: bytes of the software that came into memory "
    "meanwhile, on all nodes."
)


def names(starts: Sequence[StartResult]) -> dict[str, str]:
    """Return a short name of each case: what it starts from and how many ranks, if that is unique.

    ``apptainer sif, 4 ranks``
    """
    short = {
        one.case: " ".join(filter(None, dict.fromkeys((one.runtime, one.form))))
        + f", {one.ranks} rank{'s' if one.ranks > 1 else ''}"
        + (f" on {one.nodes} nodes" if one.nodes > 1 else "")
        for one in starts
    }
    return short if len({*short.values()}) == len(short) else {case: case for case in short}


def rows(starts: Sequence[StartResult]) -> list[tuple[str, ...]]:
    """Return the cells of every start, :data:`HEADS`."""
    short = names(starts)
    return [
        (
            short[one.case],
            one.cache,
            _with_limits(one.seconds),
            numbers.number(one.before_s),
            numbers.number(one.python_s),
            numbers.number(one.imports_s),
            _megabytes(one.fetched),
        )
        for one in starts
    ]


def footnote(starts: Sequence[StartResult]) -> str:
    """Return what the cells mean, and what each software consists of."""
    found = {
        f"{_form(one)}: {_megabytes(one.bytes)} MB on {one.filesystem or 'an unknown filesystem'}"
        for one in starts
    }
    return f"{_FOOTNOTE} Software: {'; '.join(sorted(found))}."


def _with_limits(entry: Interval) -> str:
    return f"{numbers.value(entry)} {numbers.bracketed(entry, numbers.number)}".strip()


def _form(one: StartResult) -> str:
    return one.form or "bare"


def _megabytes(nbytes: float | None) -> str:
    return numbers.NONE if nbytes is None else numbers.number(nbytes / 1e6)
