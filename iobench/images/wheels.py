"""The wheelhouse: the worker's pinned packages, fetched on the host, so that no build needs TLS."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from pathlib import Path

import iobench.images.recipe as recipe
from iobench.errors import ImageError
from iobench.images.disk import call, check_space, partial
from iobench.protocols import Say

#: The Python of each image (Debian's).
PYTHONS = {"torch": "3.11", "caffe": "3.9"}
#: What pip is told to fetch, below requirements/.
_PINS = {"torch": ("worker.txt", "constraints.txt"), "caffe": ("caffe.txt",)}
#: Free bytes that fetching takes: pip holds every wheel twice at the end.
_SPACE = {"torch": 3e9, "caffe": 1.5e9}


def wheelhouse(name: str, cache: Path, say: Say) -> Path:
    """Return a folder that holds a wheel of every package that image ``name`` pins.

    ``WHEELS`` (default ``wheels``) names one to take them from without a network; ``TORCH_INDEX``
    and ``PIP_ARGS`` are pip's, as for requirements/install.sh.  The pins decide whether the folder
    in ``cache`` is good; it appears there only when it is whole.  Raises ImageError.
    """
    requirements = recipe.root() / "requirements"
    pins = [requirements / file for file in _PINS[name]]
    sha = hashlib.sha256(b"".join(path.read_bytes() for path in pins))
    sources = [os.environ.get(name, "") for name in ("TORCH_INDEX", "PIP_ARGS", "WHEELS")]
    sha.update(" ".join([*sources, PYTHONS[name], recipe.architecture()]).encode())
    folder = cache / f"wheels-{sha.hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    check_space(cache, _SPACE[name], "fetching the packages")
    offline = recipe.root() / (os.environ.get("WHEELS") or "wheels")
    say(
        f"fetching the wheels of requirements/{pins[0].name} from "
        f"{f'{offline} (no network)' if offline.is_dir() else 'the network'}"
    )
    argv = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    argv += ["-q", "--only-binary", ":all:", "--python-version", PYTHONS[name]]
    argv += shlex.split(os.environ.get("PIP_ARGS", ""))
    if offline.is_dir():
        argv += ["--no-index", "--find-links", str(offline)]
    elif os.environ.get("TORCH_INDEX"):
        argv += ["--extra-index-url", os.environ["TORCH_INDEX"]]
    if name == "torch":  # pip too: it installs them in the image
        argv += ["-c", str(pins[1]), "-r", str(pins[0]), "pip"]
    else:
        argv += ["--no-deps", "--require-hashes", "-r", str(pins[0])]
    try:
        with partial(folder) as path:
            unpacking = path / "tmp"  # pip's own: what a killed one leaves goes with the folder
            unpacking.mkdir(parents=True)
            env = {"TMPDIR": str(unpacking.resolve())}
            call([*argv, "-d", str(path)], "fetching the worker's packages", env=env)
            shutil.rmtree(unpacking)
    except ImageError as error:
        raise ImageError(
            f"{error}; without a network use the bundle's wheels/ (docs/hpc.md), behind a proxy or "
            "mirror pass PIP_ARGS=..."
        ) from error
    return folder
