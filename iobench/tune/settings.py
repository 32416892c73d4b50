"""What a user asks of a search: its time, its limits, what it may change."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Union

import pydantic

from iobench.core.cases import Case
from iobench.core.errors import ResultsError
from iobench.host import files

#: In a suite's folder: what was asked of the search that it is.
FILE = "tune-settings.json"
#: A gain below this is none.
MARGIN = 0.05
Value = Union[bool, int, float, str]


@dataclasses.dataclass(frozen=True)
class TuneSettings:
    """One search; ``current`` and ``default`` are cases of its plan, by label.

    ``default``: the library's own defaults ("": they are the current settings).  ``memory_bytes``:
    what the batches that wait in queues may take (0: no limit).  ``formats``: stored forms that
    exist or may be made.  ``batches``: the batch sizes that may be tried, none: the current one
    alone.  ``script``: the command of a user's own script (none: a spec's case), whose loop is
    measured for so many ``seconds`` at a time.  ``core_hours``: hours times ``cores`` (0: no limit
    but the minutes).  ``only``: knob or "pipeline" -> the values that may be tried; every other
    knob stays as it is (none: all are tried).  ``libraries``: whether the winner is proved against
    the defaults of every library too.
    """

    minutes: float
    cache: str
    current: str
    default: str = ""
    margin: float = MARGIN
    cores: int = 1
    memory_bytes: int = 0
    any_order: bool = False
    formats: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    script: tuple[str, ...] = ()
    seconds: float = 0.0
    core_hours: float = 0.0
    only: Mapping[str, tuple[Value, ...]] = dataclasses.field(default_factory=dict)
    libraries: bool = False
    schema: int = 1

    @property
    def limit_s(self) -> float:
        """Seconds that everything may take: the minutes, or the core-hours if they end before."""
        billed = 3600 * self.core_hours / self.cores if self.core_hours else math.inf
        return min(60 * self.minutes, billed)

    def save(self, folder: Path) -> None:
        """Write the settings beside the plan."""
        files.write_text(folder / FILE, json.dumps(dataclasses.asdict(self), indent=1))


_SETTINGS: pydantic.TypeAdapter[TuneSettings] = pydantic.TypeAdapter(TuneSettings)


def load(folder: Path) -> TuneSettings:
    """Read the settings of a search; raises ResultsError where the suite is none."""
    try:
        return _SETTINGS.validate_json((folder / FILE).read_text())
    except (OSError, pydantic.ValidationError) as error:
        raise ResultsError(
            f"{folder} is no search of `iobench tune` ({type(error).__name__}): resume one that "
            "has the file tune-settings.json, or start a new one"
        ) from error


#: Loader -> what it does where its user sets nothing: torch.utils.data.DataLoader's keywords, the
#: depth of DALI's queue, the concurrency of SPDL's pipe.
DEFAULTS = {
    "torch": {"workers": 0, "prefetch": 2, "loader_options": {}},
    "dali": {"prefetch": 2, "loader_options": {}},
    "spdl": {"workers": 1, "loader_options": {}},
    "webdataset": {"workers": 0, "prefetch": 2, "loader_options": {}},
}


def default_of(case: Case) -> Case:
    """Return the case with the defaults of its loader's library."""
    return dataclasses.replace(case, **DEFAULTS.get(case.loader, {}))  # type: ignore[arg-type]
