"""The wheelhouse: the worker's pinned packages, fetched on the host, so that no build needs TLS."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from pathlib import Path

import iobench.images.recipe as recipe
from iobench.core.errors import ImageError
from iobench.core.protocols import Say
from iobench.images.disk import call, check_space, partial
from iobench.images.model import recipe_of


def wheelhouse(name: str, cache: Path, say: Say) -> Path:
    """Return a folder that holds a wheel of every package that image ``name`` pins.

    ``WHEELS`` (default ``wheels``) names one to take them from without a network; ``TORCH_INDEX``
    and ``PIP_ARGS`` are pip's, as for requirements/install.sh.  The pins decide whether the folder
    in ``cache`` is good; it appears there only when it is whole.  Raises ImageError.
    """
    requirements = recipe.root() / "requirements"
    wanted = recipe_of(name)
    pins = [requirements / word for word in wanted.wheels if word.endswith(".txt")]
    sha = hashlib.sha256(b"".join(path.read_bytes() for path in pins))
    sources = [os.environ.get(name, "") for name in ("TORCH_INDEX", "PIP_ARGS", "WHEELS")]
    sha.update(" ".join([*sources, wanted.python, recipe.architecture()]).encode())
    folder = cache / f"wheels-{sha.hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    check_space(cache, wanted.wheels_bytes, "fetching the packages")
    offline = recipe.root() / (os.environ.get("WHEELS") or "wheels")
    names = ", ".join(path.name for path in pins)
    source = f"{offline} (no network)" if offline.is_dir() else "the network"
    say(f"fetching the wheels of {names} from {source}")
    argv = [sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check"]
    argv += ["--no-input", "-q", "--only-binary", ":all:", "--python-version", wanted.python]
    argv += shlex.split(os.environ.get("PIP_ARGS", ""))
    if offline.is_dir():
        argv += ["--no-index", "--find-links", str(offline)]
    elif os.environ.get("TORCH_INDEX"):
        argv += ["--extra-index-url", os.environ["TORCH_INDEX"]]
    argv += [str(requirements / w) if w.endswith(".txt") else w for w in wanted.wheels]
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
