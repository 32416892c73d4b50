"""SIF files, which apptainer writes; neither root nor a daemon is needed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import iobench.images.archive as archive
import iobench.images.disk as disk
import iobench.images.recipe as recipe
from iobench.core.errors import ImageError
from iobench.host import tools
from iobench.images import docker_daemon
from iobench.images.model import CACHE, Image

#: zstd is three times as fast to make as gzip, and as small.
_SQUASHFS = "-comp zstd -Xcompression-level 3"
_LABEL = "iobench.digest"
_DEFINITION = "singularity/image.def"


def build(image: Image, tree: Path, out: Path) -> None:
    """Write the SIF ``out`` of ``image``, whose files are in the folder ``tree``.

    From a folder it takes a quarter of the CPU time that it takes from the archive, whose layers
    apptainer compresses and unpacks once more.
    """
    text = (recipe.root() / _DEFINITION).read_text()
    words = ["--build-arg", f"TREE={tree.resolve()}", "--build-arg", f"DIGEST={image.digest}"]
    cache = Path(image.folder) / CACHE
    with disk.scratch(cache / "definition") as folder:
        path = folder / "image.def"
        path.write_text(text + _sections(archive.contents(image.archive).config))
        apptainer_build(out, str(path), cache, f"building {image.sif}", words)
    found = labels(out).get(_LABEL)
    if found != image.digest:
        raise ImageError(f"{out} carries the digest {found} and was made from {image.digest}")


def _sections(config: Mapping[str, Any]) -> str:
    """Return the rest of a definition that ends in labels: an image's own, environment, command."""
    settings = config["config"]
    lines = [f"    {key} {value}" for key, value in (settings.get("Labels") or {}).items()]
    lines.append("%environment")
    for variable in settings.get("Env") or ():
        name, _, value = variable.partition("=")
        lines.append(f"    export {name}={shlex.quote(value)}")
    command = shlex.join([*(settings.get("Entrypoint") or ()), *(settings.get("Cmd") or ())])
    lines += ["%runscript", f"    [ $# -gt 0 ] || set -- {command}", '    exec "$@"']
    return "\n".join(lines) + "\n"


def labels(path: Path) -> dict[str, str]:
    """Return the labels of a SIF.  Raises ImageError for a file that apptainer cannot read."""
    from spython.main import Client

    with _as_singularity() as named, docker_daemon.environment({**tools.apptainer_env(), **named}):
        facts = Client.inspect(str(path), quiet=True)
    try:
        found: dict[str, str] = facts["attributes"]["labels"]
    except (KeyError, TypeError) as error:
        raise ImageError(f"{path} is no SIF that apptainer can read: make it again") from error
    return found


@contextlib.contextmanager
def _as_singularity() -> Iterator[dict[str, str]]:
    """Yield what to set so that spython, which calls ``singularity``, finds apptainer by it."""
    found = shutil.which(tools.apptainer() or "apptainer")
    if shutil.which("singularity") or not found:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        os.symlink(found, os.path.join(folder, "singularity"))
        yield {"PATH": os.pathsep.join([folder, os.environ["PATH"]])}


def apptainer_build(
    out: Path, source: str, folder: Path, what: str, words: Sequence[str] = ()
) -> None:
    """Write the SIF ``out`` of what apptainer calls ``source``; ``folder``: for what it unpacks.

    ``words``: further options.  Raises ImageError, which begins with ``what`` was done.
    """
    program = tools.apptainer()
    if not program:
        raise ImageError(
            "neither apptainer nor singularity is on PATH or in .tools/: `requirements/install.sh "
            "containers`, or `module load apptainer`"
        )
    argv = [program, "-q", "build", "--force", "--mksquashfs-args", _SQUASHFS]
    with disk.scratch(folder.resolve() / "apptainer") as temporary:
        env = {"APPTAINER_TMPDIR": str(temporary), "APPTAINER_CACHEDIR": str(temporary)}
        env.update(tools.apptainer_env())
        disk.call([*argv, *words, str(out.resolve()), source], what, env=env)
