"""The base image: pulled from a registry, or bootstrapped from Debian's packages without one."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import iobench.images.recipe as recipe
from iobench.errors import ImageError
from iobench.images.disk import call, check_space, partial
from iobench.protocols import Say

#: The date that a bootstrapped tree carries, so that the same packages give the same bytes.
SOURCE_DATE_EPOCH = "1793491200"  # 2026-11-01
_SPACE = 1e9
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MIRROR, _SECURITY = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_UNWANTED = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")


class Base(NamedTuple):
    """``tar``: a root filesystem; ``digest``: its sha256; ``pins``: ``exact`` or ``moved``."""

    tar: Path
    digest: str
    pins: str


def bootstrap(name: str, cache: Path, say: Say) -> Base:
    """Return the bootstrapped base of image ``name``, made in ``cache`` unless it is there.

    Raises ImageError when mmdebstrap is missing or fails.
    """
    suite = recipe.SUITES[name]
    tar = cache / f"base-{suite}-{recipe.architecture()}.tar"
    if not tar.exists():
        if shutil.which("mmdebstrap") is None:
            raise ImageError(
                f"no registry gives {recipe.BASES[name]} and mmdebstrap is not here to bootstrap "
                "it from Debian's packages: `apt-get install mmdebstrap`, or name a base that your "
                "registry has by --base"
            )
        check_space(cache, _SPACE, f"bootstrapping Debian {suite}")
        say(f"bootstrapping Debian {suite} from its packages (mmdebstrap), half a minute")
        with partial(tar) as path:
            call(
                _argv(suite, path),
                f"bootstrapping Debian {suite}",
                env={"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH},
            )
    digest = _sha256(tar)
    wanted = locked(name)
    if wanted and digest != wanted:
        say(
            f"Debian {suite}: this is not the locked base (the mirror moved on, or is another); "
            f"taking it as it is: sha256 {digest[:12]}, locked {wanted[:12]}, pins: moved"
        )
    return Base(tar, digest, "exact" if digest == wanted else "moved")


def locked(name: str) -> str:
    """Return the sha256 that the bootstrapped base of ``name`` should have on this architecture."""
    path = recipe.lock(name)
    start = f"# base {recipe.architecture()} sha256:"
    for line in path.read_text().splitlines():
        if line.startswith(start):
            return line[len(start) :].strip()
    return ""


def _argv(suite: str, out: Path) -> list[str]:
    mirror, security = mirrors()
    argv = ["mmdebstrap", "--quiet", "--format=tar", "--variant=minbase"]
    argv += ["--include=ca-certificates", f"--architectures={recipe.architecture()}"]
    argv += ['--aptopt=Apt::Install-Recommends "false"', "--aptopt=Acquire::Retries 3"]
    argv += [f"--dpkgopt=path-exclude={path}" for path in _UNWANTED]
    argv += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    for gone in ("etc/resolv.conf", "etc/hostname", "var/lib/apt/lists"):
        argv.append(f'--customize-hook=rm -rf "$1/{gone}"')
    if Path(_KEYRING).exists():
        argv.append(f"--keyring={_KEYRING}")
    argv += [suite, str(out), f"deb {mirror} {suite} main"]
    argv += [f"deb {mirror} {suite}-updates main", f"deb {security} {suite}-security main"]
    return argv


def mirrors() -> tuple[str, str]:
    """Return (Debian's mirror, its security mirror).

    ``DEBIAN_MIRROR`` and ``DEBIAN_SECURITY_MIRROR`` name them; else this host's own sources do,
    where it is a Debian; else it is deb.debian.org.
    """
    found = [_MIRROR, _SECURITY]
    if _SOURCES.exists():
        lines = _SOURCES.read_text().splitlines()
        for uri in (line.split()[1] for line in lines if line.startswith("URIs: ")):
            found[1 if "security" in uri else 0] = uri
    names = ("DEBIAN_MIRROR", "DEBIAN_SECURITY_MIRROR")
    mirror, security = (os.environ.get(n) or uri for n, uri in zip(names, found, strict=True))
    return mirror, security


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
