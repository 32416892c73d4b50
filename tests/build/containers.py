"""Real containers for tests: the image in a runtime's form, and a small dataset in every form."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Mapping

import pytest

from iobench.core import protocols, registry
from iobench.core.cases import Case, Dataset
from iobench.core.errors import ImageError
from iobench.data import convert, make
from iobench.run import command
from tests.capabilities import image_folder, missing, need

RUNTIMES = [name for name in registry.names("runtimes") if name != "bare"]
#: Of these, the two that `make test` runs further tests in; the others are breadth there.
FIRST = ("docker", "apptainer")
#: Cases that a runtime runs in more than one form of the image.
OPTIONS: Mapping[str, List[Dict[str, str]]] = {
    "apptainer": [{"mode": "sif"}, {"mode": "sandbox"}],
}


def say(text: str) -> None:
    """Progress of what is set up: nobody reads it."""


@contextlib.contextmanager
def daemon() -> Iterator[None]:
    """A docker daemon: the machine's, or a private one that is stopped at the end."""
    if not registry.unavailable("runtimes", "docker"):
        yield
        return
    from iobench.images import docker_daemon

    with docker_daemon.docker(say, image_folder()):
        yield


def services() -> contextlib.AbstractContextManager[None]:
    """Return :func:`daemon` where it can be had; the other runtimes need none."""
    return contextlib.nullcontext() if missing("docker") else daemon()


def images_of(case: Case) -> Dict[str, protocols.ImageUse]:
    """Return the case's image in the form that its runtime takes; made where it is not yet."""
    form = registry.runtime_of(case).form()
    if not form:
        return {}
    need("image" if case.image == "torch" else f"{case.image}-image")
    try:
        return command.images_for([case], image_folder())
    except ImageError:
        from iobench.images import catalogue, forms

        forms.make_form(catalogue.find(case.image, image_folder()), form, say)
        return command.images_for([case], image_folder())


def small_dataset(root: Path, samples: int = 32) -> Dataset:
    """Make a dataset with the forms that the four pipelines read."""
    made = make.make("imagenet-like", root, samples=samples, seed=1)
    for form in ("lmdb", "hdf5"):
        convert.convert(made, form)
    return made


def marked(marker: str) -> Dict[int, List[str]]:
    """Return pid -> command line of every process that has ``marker`` in its environment."""
    found: Dict[int, List[str]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (path / "environ").read_bytes():
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words != [""] and int(path.name) != os.getpid():
                    found[int(path.name)] = words
    return found


def needs(case: Case) -> None:
    """Skip the calling test where the case cannot run on this machine."""
    need(case.runtime)
    for module in ("torch", "dali"):
        need(module)
    reason = registry.runtime_of(case).available()
    if reason and case.runtime != "docker":
        pytest.skip(reason)


if __name__ == "__main__":  # runs a command beside a Docker daemon, which its processes share
    with services():
        sys.exit(subprocess.call(sys.argv[1:]))
