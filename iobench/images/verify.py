"""Proof that every form is the same image: digests, content of the trees, the libraries inside."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import iobench
from iobench.core import registry
from iobench.core.errors import BackendUnavailable, ImageError, SpecError
from iobench.core.inside import CODE_INSIDE, PLUGINS_INSIDE, PREFIX_INSIDE
from iobench.core.protocols import Mount, Say, Start
from iobench.images import archive, disk, forms, tree
from iobench.images.model import FORMS, Image

#: The runtime that shows what a form holds inside.
_RUNTIMES = {"docker": "docker", "podman": "podman", "sif": "apptainer", "rootfs": "unpacked"}
_LIMIT_S = 600.0
_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Proof:
    """One thing that was checked of one form (``archive`` among them)."""

    form: str
    what: str
    ok: bool
    detail: str


def verify(image: Image, wanted: Sequence[str] = (), say: Say = lambda line: None) -> list[Proof]:
    """Check the archive and the forms ``wanted`` (none: every one that is made and can run here).

    A form that is asked for and not made is a finding that is not ok.
    """
    found = archive.contents(image.archive).digest
    ok = found == image.digest
    findings = [Proof("archive", "digest", ok, found if ok else f"{found}, not {image.digest}")]
    say(f"{image.name}: unpacking {image.archive} to compare with")
    try:
        listings = {"archive": _reference(image)}
    except ImageError as error:
        return [*findings, Proof("archive", "layers", False, str(error))]
    for form in wanted or FORMS:
        try:
            source = forms.in_form(image, form, untouched=False)
        except ImageError as error:
            if wanted:
                findings.append(Proof(form, "there", False, str(error)))
            continue
        findings.append(Proof(form, "digest", True, image.digest))
        say(f"{image.name} as {form}: reading every file")
        try:
            listings[form] = _listing(image, form, source)
            findings.append(_self_check(image, form, source))
        except (ImageError, BackendUnavailable, SpecError) as error:
            findings.append(Proof(form, "starts", False, str(error)))
    return findings + _compare(listings)


def _reference(image: Image) -> dict[str, str]:
    """Return what the archive itself holds: the one content that every form must have."""
    own = os.access(image.folder, os.W_OK)  # else: a site's images, shown to everybody
    where = Path(image.folder) if own else Path(tempfile.gettempdir())
    disk.check_space(where, 1.2 * image.bytes, f"unpacking {image.archive}")
    with tempfile.TemporaryDirectory(prefix=".verify-", dir=where) as scratch:
        root = Path(scratch, "root")
        archive.unpack(image.archive, root)
        return tree.listing(str(root))


def _compare(listings: dict[str, dict[str, str]]) -> list[Proof]:
    unread = set(tree.unread(*listings.values()))  # compared is what every listing could read
    folders = tuple(path for path in unread if path.endswith("/"))
    listings = {
        form: {p: v for p, v in found.items() if p not in unread and not p.startswith(folders)}
        for form, found in listings.items()
    }
    blind = f"; not readable to this user: {', '.join(sorted(unread)[:_SHOWN])}" if unread else ""
    first, *others = listings
    whole = f"{len(listings[first])} files and links, sha256:{tree.digest(listings[first])}"
    findings = [Proof(first, "tree", True, whole)]
    for form in others:
        wrong = tree.differences(listings[first], listings[form])
        detail = f"the same as {first}: {whole}"
        if wrong:
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            detail = f"{len(wrong)} differ from {first}: {', '.join(wrong[:_SHOWN])}{more}"
        findings.append(Proof(form, "tree", not wrong, detail + blind))
    return findings


def _listing(image: Image, form: str, source: str) -> dict[str, str]:
    if form == "rootfs":
        return tree.listing(source)
    # The script is shown at a mount point, which a listing leaves out.
    mounts = [Mount(Path(tree.__file__).parent.resolve(), PLUGINS_INSIDE)]
    command = [image.python, "-I", f"{PLUGINS_INSIDE}/{Path(tree.__file__).name}", "/"]
    listing: dict[str, str] = json.loads(inside(form, source, command, mounts))
    return listing


def _self_check(image: Image, form: str, source: str) -> Proof:
    code = Path(iobench.__file__).parent.resolve()
    if form == "rootfs":
        python, path, mounts = f"{source}{image.python}", str(code.parent), []
        if not image.python.startswith(f"{PREFIX_INSIDE}/"):
            return Proof(form, "self-check", True, "not run: its Python needs a container")
    else:
        python, path = image.python, CODE_INSIDE
        mounts = [Mount(code, f"{CODE_INSIDE}/iobench")]
    command = [python, "-m", "iobench.worker.self_check", image.name]
    out = inside(form, source, command, mounts, {"PYTHONPATH": path})
    return Proof(form, "self-check", True, out.strip().splitlines()[-1])


def inside(
    form: str,
    source: str,
    command: Sequence[str],
    mounts: Sequence[Mount] = (),
    env: dict[str, str] | None = None,
) -> str:
    """Run a command in a form; return its stdout.  Raises ImageError, BackendUnavailable."""
    runtime = registry.load("runtimes", _RUNTIMES[form]).make()
    if reason := runtime.available():
        raise BackendUnavailable(f"{_RUNTIMES[form]}: {reason}")
    name = f"iobench-verify-{os.getpid()}"
    argv = runtime.argv(command, Start(source, mounts, env or {}, name))
    what = f"{form}: {' '.join(command[:3])} inside"
    try:
        return disk.call(argv, what, limit_s=_LIMIT_S, errors="surrogateescape")
    except BaseException:
        runtime.stop(name)
        raise
