"""Programs that iobench installs for itself, below ``.tools/`` of the clone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Dict

FOLDER = Path(__file__).parent.parent.parent / ".tools"
#: Apptainer, and what it was called before.
APPTAINERS = ("apptainer", "singularity")


def extend_path() -> None:
    """Put what ``.tools/`` holds at the end of PATH: a site's own programs come first."""
    own = str(FOLDER / "apptainer" / "bin")
    words = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if own not in words and os.path.isdir(own):
        os.environ["PATH"] = os.pathsep.join([*words, own])


def apptainer() -> str:
    """Return the name of the program that is on PATH: apptainer, else singularity; "" for none."""
    extend_path()
    return next((name for name in APPTAINERS if shutil.which(name)), "")


def apptainer_env() -> Dict[str, str]:
    """Return what apptainer's environment needs here.

    Root without every capability (in a container or a small virtual machine) cannot pass them all
    on, and apptainer then refuses to start unless it is set to pass on none.
    """
    name = apptainer() or APPTAINERS[0]
    return {f"{name.upper()}_NO_PRIVS": "1"} if os.geteuid() == 0 else {}
