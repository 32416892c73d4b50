"""What each sample took in the measured loop: of its last samples, so that a record stays small."""

from __future__ import annotations

from typing import Any, Dict, List

from iobench.core.stages import Measured

#: Samples that a record holds.
RING = 1024
PARTS = ("read_s", "decode_s", "transform_s")


def recent(measured: Measured) -> Dict[str, List[float]]:
    """Return the ids and the seconds of each part of the last ``RING`` samples after the warm-up.

    {} where the loader keeps no time.  To 0.1 microseconds.
    """
    import numpy as np

    pairs = list(zip(measured.ids, measured.marks))[measured.steps.warmup :]
    if not pairs:
        return {}
    times: Any = np.concatenate([np.diff(m.reshape(len(ids), -1), axis=1) for ids, m in pairs])
    ids = np.concatenate([ids for ids, _ in pairs])
    found: Dict[str, List[float]] = {"id": ids[-RING:].tolist()}
    for part, column in zip(PARTS, times[-RING:].T):
        found[part] = np.round(column, 7).tolist()
    return found
