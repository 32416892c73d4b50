"""What differs between the arms of a contrast beside the factor under study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from statistics import median
from typing import Any

from iobench.analysis.contrast_results import CONFOUNDED, PASS, UNKNOWN, Confounders
from iobench.analysis.pairs import Pair, factors
from iobench.analysis.windows import ran_s
from iobench.core.records import Slices
from iobench.equations.stats import ALPHA, hodges_lehmann
from iobench.spec.labels import PIPELINE_FIELDS

#: Difference of the times to stop or to go on that is a confounder, as a share of running time.
LATE_SHARE = 1e-3
#: Difference of the times from the workers' mean end to the last batch that is one, of the loop.
TAIL_SHARE = 5e-3
#: Facts that differ between any two processes and explain nothing.
VOLATILE = frozenset({"pid", "rank", "boot_id", "mount_namespace", "image_mount_bytes"})
#: What a bind mount may set beside the filesystem's own options.
BIND_FLAGS = frozenset({"ro", "rw", "nosuid", "nodev", "noexec", "relatime"})
#: Facts of the one kernel below all arms, which a container may hide: hidden is not different.
HOST_FACTS = ("cpu.", "thp", "mount.read_ahead_kb")
#: /dev/shm of this size and more is never what makes two arms differ: it can fill up, not slow.
ROOMY_SHM_BYTES = 1 << 30
#: Filesystems of a container engine's store that explain nothing; "": there is none.
LOCAL_STORES = frozenset({"", "posix"})
#: Set by runtimes; it can make a run fail, never slow.
RUNTIME_FACTS = frozenset({"limits.open_files", "environment.LD_LIBRARY_PATH"})


def differences(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    *,
    across_runtimes: bool = False,
    across_libraries: bool = False,
    studied: tuple[str, ...] = (),
) -> list[str]:
    """Return what differs, one line a fact: ``numpy: 1.26 against 2.4``; [] when nothing does.

    ``across_runtimes``: leave out what another runtime is by itself.  ``across_libraries``: leave
    out libraries that only one side has, and threads.  ``studied``: beginnings of facts that are
    under study themselves (``mount.``, ``limits.cpus``).  docs/method.md says why.
    """
    first, second = flattened(a), flattened(b)
    lines = []
    for name in sorted({*first, *second}):
        if name.split(".")[-1] in VOLATILE:
            continue
        left, right = first.get(name, "absent"), second.get(name, "absent")
        if left == right or (across_runtimes and _of_runtime(name, first, second)):
            continue
        if name.startswith(studied) or (across_libraries and _brought(name, first, second)):
            continue
        lines.append(f"{_plain(name)}: {_short(left)} against {_short(right)}")
    return lines


def _brought(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if name.startswith(("libraries.", "mapped.")):
        return (name in a) != (name in b)
    return name.startswith(("threads.", SOURCES))


def _of_runtime(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    left, right = a.get(name), b.get(name)
    if name == "host":
        return bool(a.get("boot_id")) and a.get("boot_id") == b.get("boot_id")
    if name == "mount.options":
        flags = {*str(left or "").split(",")} ^ {*str(right or "").split(",")}
        return flags <= BIND_FLAGS
    if name == "dev_shm_bytes":
        return min(int(left or 0), int(right or 0)) >= ROOMY_SHM_BYTES
    if name.startswith(HOST_FACTS):
        return left in (None, "") or right in (None, "")
    return name in RUNTIME_FACTS


def flattened(value: Mapping[str, Any], by: str = ".", prefix: str = "") -> dict[str, Any]:
    """Return a fingerprint's facts, each by its keys on every level, joined ``by``."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            flat.update(flattened(item, by, name + by))
        else:
            flat[name] = list(item) if isinstance(item, tuple) else item
    return flat


def _plain(name: str) -> str:
    """Turn a dotted name into words: "cpu.flags_digest" -> "cpu flags digest"."""
    head, _, rest = name.partition(".")
    if head in ("mapped", "sources", "environment") and rest:
        return rest if head == "environment" else f"file {rest}"
    words = rest if head == "libraries" and rest else name.replace(".", " ")
    return words.replace("_", " ")


def _short(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _of_rivals(pairs: Sequence[Pair]) -> list[str]:
    """Return that other drivers ran on the node beside one arm alone, if they did."""
    counts = [sum(bool(side.notes.get("rivals")) for side in sides)
              for sides in ((p.arm for p in pairs), (p.base for p in pairs))]  # fmt: skip
    uneven = sum(bool(p.arm.notes.get("rivals")) != bool(p.base.notes.get("rivals")) for p in pairs)
    if not uneven:
        return []
    return [f"another iobench on the node: in {counts[0]} against {counts[1]} trials"]


def _of_stores(pairs: Sequence[Pair]) -> list[str]:
    """Return on which filesystems the arms' engines keep images and upper layers, if unlike.

    A store on a local disk is what a container is by itself; bare has none.
    """
    found: dict[str, None] = {}
    for pair in pairs:
        arm, base = (str(side.runtime.get("store") or "") for side in (pair.arm, pair.base))
        if arm != base and {arm, base} - LOCAL_STORES:
            found[f"container store: {arm or 'none'} against {base or 'none'}"] = None
    return list(found)


def _of_turns(pairs: Sequence[Pair], level: float) -> list[str]:
    """Return that arms which take turns stop, go on or end differently, where that matters.

    ``level``: of the intervals over the pairs.  What runs on between the signal and the stop is not
    counted; what still stands still while the others of its arm go on is.  After the mean end of
    its workers nothing of a loop is.
    """
    turns = [pair for pair in pairs if pair.in_turns]
    lines = []
    for words, shares, least in (
        ("time until stopped, of the running time", _shares(turns, "stop_s"), LATE_SHARE),
        ("time until all of it goes on, of the running time", _shares(turns, "thaw_s"), LATE_SHARE),
        ("time from the workers' mean end to the last batch, of the loop",
         [pair.tails for pair in turns], TAIL_SHARE),
    ):  # fmt: skip
        apart = [arm - base for arm, base in shares]
        found = hodges_lehmann(apart, level=level) if apart else None
        if found and (found.low > least or found.high < -least):
            of_arm, of_base = map(median, zip(*shares, strict=True))
            lines.append(f"{words}: {of_arm:.2%} against {of_base:.2%}")
    return lines


def _shares(turns: Sequence[Pair], seconds: str) -> list[tuple[float, float]]:
    return [(_share(p.arm.slices, seconds), _share(p.base.slices, seconds)) for p in turns]


def _share(slices: Slices | None, seconds: str) -> float:
    late: Sequence[float] = getattr(slices, seconds, ())
    return sum(late) / ran_s(slices) if slices else 0.0


_OPTIONS = ("loader_options", "format_options", "trainer_options")
#: Keys whose every value brings libraries of its own.
BRINGING = frozenset({*PIPELINE_FIELDS, "trainer", "transform", "decoder", *_OPTIONS})
#: Digests of the Python modules that a process has loaded.  They depend on its work: the process
#: that opens an LMDB, the main one or a worker, loads one module more.
SOURCES = "sources."
#: A key -> the facts of a fingerprint that it sets: libraries take as many threads as cores.
STUDIED = {
    "workers": (SOURCES,),
    "placement": ("mount.",),
    "memory_bytes": ("limits.memory_bytes",),
    "cpus": ("limits.cpus", "threads."),
    "nodes": ("host",),
}


def confounders(pairs: Sequence[Pair], alpha: float = ALPHA) -> Confounders:
    """Return what differs between the arms' fingerprints beside the factor under study.

    ``alpha``: of the two-sided test of what varies over the pairs; the verdict's own counts the
    contrasts judged together, and the looks.
    """
    found: dict[str, None] = dict.fromkeys(
        [*_of_turns(pairs, 1 - alpha), *_of_rivals(pairs), *_of_stores(pairs)]
    )
    seen: set[str] = set()  # of thousands of ranks most are alike
    for pair in pairs:
        factor = factors(pair.arm.trial.case, pair.base.trial.case)
        sides = pair.arm.ranks, pair.base.ranks  # the one with fewer ranks takes turns
        for arm, base in islice(zip(*map(cycle, sides)), max(map(len, sides))):
            both = arm.fingerprint, base.fingerprint
            if not all(both):
                return Confounders(UNKNOWN, ["an arm has no fingerprint"])
            alike = [{**facts, "pid": 0, "mount_namespace": ""} for facts in both]
            key = json.dumps(alike, default=str)
            if key not in seen:
                seen.add(key)
                lines = differences(
                    *both,
                    across_runtimes="runtime" in factor,
                    across_libraries=not BRINGING.isdisjoint(factor),
                    studied=tuple(fact for key in factor for fact in STUDIED.get(key, ())),
                )
                found |= dict.fromkeys(lines)
    return Confounders(CONFOUNDED if found else PASS, list(found))
