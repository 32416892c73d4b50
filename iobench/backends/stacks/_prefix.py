"""A stack in a folder that runs wherever it lies: the record of what is in it, written last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, Union

RECORD = "share/iobench-caffe.json"


def has_record(prefix: Union[str, Path]) -> bool:
    """Return whether a prefix was made to its end."""
    return Path(prefix, RECORD).exists()


def record(prefix: Union[str, Path]) -> Dict[str, str]:
    """Return what the prefix's record says is in it; {} without a record, or for a broken one."""
    try:
        facts = json.loads(Path(prefix, RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in facts.items()}
