"""What Caffe writes to its log (glog's lines): each training step, and why it ended.

A line is ``I1121 18:30:01.123456  4711 solver.cpp:239] Iteration 3 (25 iter/s, ...), loss = 2.3``:
level, day, local time to the microsecond, thread, place, message.  Lines without that head go on
with the message before.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Iterator, List, NamedTuple, Sequence

_HEAD = re.compile(
    r"(?P<level>[IWEF])\d{4,8} (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d\.\d{1,6})\s+\d+ "
    r"(?P<source>[\w.+-]+):(?P<line>\d+)\] ?(?P<message>.*)$"
)
#: With one line a step; the extra pass after the last step prints none of "(... iter/s".
_STEP = re.compile(r"Iteration (\d+) \(.*\), loss = (\S+)")
_BEGIN = "Solving "
_DAY_S = 86400.0
_PROTOBUF = re.compile(r"\[libprotobuf ERROR [^\]]*\] ?(.*)$")


class Line(NamedTuple):
    """One message; ``time_s``: seconds of its day."""

    level: str
    time_s: float
    source: str
    line: int
    message: str


@dataclasses.dataclass(frozen=True)
class TrainLog:
    """The steps of one `caffe train` run.

    ``done_s``: when the loss of each step was known, seconds since the training began (before it
    the net was built, and the data layer's queue began to fill).
    """

    done_s: Sequence[float] = ()
    losses: Sequence[float] = ()
    starved: int = 0  # lines about a wait for a batch (Caffe logs one wait in 1000)


def lines(text: str) -> Iterator[Line]:
    """Yield the log's messages; lines of others are left out, a stack trace too."""
    held: List[Line] = []
    for raw in text.splitlines():
        match = _HEAD.search(raw)
        if match:
            yield from held
            seconds = int(match["h"]) * 3600 + int(match["m"]) * 60 + float(match["s"])
            place = match["source"], int(match["line"])
            held = [Line(match["level"], seconds, *place, match["message"])]
        elif raw.startswith("***"):
            yield from held
            held = []
        elif held and held[0].level == "F":
            held = [held[0]._replace(message=f"{held[0].message} {raw.strip()}")]
    yield from held


def training(text: str) -> TrainLog:
    """Return the steps in a log of ``display: 1``.

    Raises ValueError when it holds no beginning or skips a step: it is not such a log.
    """
    begun = None
    day = last = 0.0
    done: List[float] = []
    losses: List[float] = []
    starved = 0
    for line in lines(text):
        if line.time_s < last - _DAY_S / 2:
            day += _DAY_S  # midnight
        last = line.time_s
        step = _STEP.match(line.message)
        if line.message.startswith(_BEGIN):
            begun = day + line.time_s
        elif step and line.source == "solver.cpp":
            if int(step[1]) != len(done):
                raise ValueError(f"step {len(done)} is not in the log: display must be 1")
            done.append(day + line.time_s)
            losses.append(float(step[2]))
        starved += line.source == "blocking_queue.cpp"
    if begun is None:
        raise ValueError("the log has no line about the begin of the training")
    return TrainLog([t - begun for t in done], losses, starved)


#: Pattern of the message -> what it means and what to do.  The first match is used.
_HINTS = {
    r"Failed to parse|ReadProtoFromTextFile|Unknown layer type|[Uu]nknown (bottom|enum)": (
        "the prototxt does not parse or names what this Caffe has not: mend the solver or net"
    ),
    r"cv_img\.data|Could not load|Could not open or find file": (
        "a list names an image that is missing or no image: `iobench data verify` names it"
    ),
    r"Could not decode|ParseFromString": "a record is no image: convert again",
    r"crop_size|<= img_height|<= img_width": (
        "an image is smaller than the crop, and Caffe's layers enlarge none: use larger images, or "
        "the jpeg list with loader options new_height and new_width"
    ),
    r"mdb_status|MDB_": "the LMDB is missing or damaged: delete its folder and convert again",
    r"leveldb|iter_->status": (
        "the LevelDB is missing, damaged or in use: delete its folder and convert again"
    ),
    r"HDF5 dataset|hdf_blobs_|HDF5 file|dataset ndims|H5LT|num_axes": (
        "the HDF5 file is missing or not in Caffe's layout (data of n x 3 x h x w floats, label of "
        "n): convert to hdf5-float again"
    ),
    r"out of memory|allocate|bad_alloc": "there is too little memory: use a smaller batch",
}


def fatal(text: str) -> str:
    """Return in one line why Caffe ended its process, "" if its log does not show it.

    glog's fatal line, protobuf's line about a file before it, and what to do about it.
    """
    found = next((line for line in lines(text) if line.level == "F"), None)
    if found is None:
        return ""
    output = [m[1] for m in map(_PROTOBUF.search, text.splitlines()) if m]
    before = [line.message for line in lines(text) if line.level == "E"]
    reason = " ".join(" ".join([*output[-1:], *before[-1:], found.message]).split())
    hint = next((h for pattern, h in _HINTS.items() if re.search(pattern, reason)), "")
    advice = f": {hint}" if hint else ": look up that check in Caffe's source"
    return f"Caffe stopped at {found.source}:{found.line}: {reason[:400].rstrip('. ')}{advice}"
