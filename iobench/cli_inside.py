"""What `docker run IMAGE` says: the doctor inside, without the driver's libraries."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Sequence

from iobench import doctor


def main(modules: Sequence[str]) -> int:
    """Print every check, and which of ``modules`` cannot be imported (status 1)."""
    for check in doctor.examine(Path()):
        print(f"{'ok' if check.ok else 'no'}  {check.name}: {check.detail}")
    broken = [line for line in map(_broken, modules) if line]
    for line in broken:
        print(f"no  {line}")
    if not broken:
        print(f"ok  imported: {', '.join(modules)}")
    return 1 if broken else 0


def _broken(module: str) -> str:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"{module}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
