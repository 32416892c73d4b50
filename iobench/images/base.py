"""The base image, bootstrapped from Debian's packages, and where those are from."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from pathlib import Path
from typing import NamedTuple

import iobench.images.recipe as recipe
from iobench.core.errors import ImageError
from iobench.core.protocols import Say
from iobench.images.disk import call, check_space, partial, sha256

#: The date that a bootstrapped tree carries, so that the same packages give the same bytes.
SOURCE_DATE_EPOCH = "1793491200"  # 2026-11-01
_SPACE = 1e9
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_UNWANTED = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")


class Base(NamedTuple):
    """``tar``: a root filesystem; ``digest``: its sha256; ``pins``: ``exact`` or ``moved``."""

    tar: Path
    digest: str
    pins: str


def bootstrap(cache: Path, say: Say) -> Base:
    """Return the base image, bootstrapped in ``cache`` unless it is there.  Raises ImageError."""
    suite = recipe.SUITE
    tar = cache / f"base-{suite}-{recipe.architecture()}.tar"
    if not tar.exists():
        if shutil.which("mmdebstrap") is None:
            raise ImageError(
                f"no registry gives debian:{suite}-slim and mmdebstrap is not here to bootstrap "
                "it from Debian's packages: `apt-get install mmdebstrap`, or name a base that your "
                "registry has by --base"
            )
        check_space(cache, _SPACE, f"bootstrapping Debian {suite}")
        say(f"bootstrapping Debian {suite} from its packages (mmdebstrap), half a minute")
        with partial(tar) as path:
            env = {"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH}
            call(_argv(suite, path), f"bootstrapping Debian {suite}", env=env)
    digest = sha256(tar)
    wanted = locked(suite)
    if wanted and digest != wanted:
        say(
            f"Debian {suite}: this is not the locked base (the mirror moved on, or is another); "
            f"taking it as it is: sha256 {digest[:12]}, locked {wanted[:12]}, pins: moved"
        )
    return Base(tar, digest, "exact" if digest == wanted else "moved")


def locked(suite: str) -> str:
    """Return the sha256 that the bootstrapped base of a suite should have on this architecture."""
    start = f"# base {recipe.architecture()} sha256:"
    lines = recipe.lock(suite).read_text().splitlines()
    return next((line[len(start) :].strip() for line in lines if line.startswith(start)), "")


def _argv(suite: str, out: Path) -> list[str]:
    mirror, security = mirrors()[0].values()
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


def mirrors() -> list[dict[str, str]]:
    """Return where Debian's packages are from, in the order to try.

    Each row maps ``debian`` and ``debian-security``, Debian's archives, to an address.
    ``DEBIAN_MIRROR`` and ``DEBIAN_SECURITY_MIRROR`` name one or, separated by blanks, several
    (without the latter: the former with ``-security`` appended); else this host's apt does, where
    it is a Debian.  Raises ImageError where there is none.
    """
    named = os.environ.get("DEBIAN_MIRROR", "").split()
    security = os.environ.get("DEBIAN_SECURITY_MIRROR", "").split()
    if not named:
        own = _of_apt()
        named, security = own["debian"], security or own["debian-security"]
    if not named:
        raise ImageError(
            "nothing says where Debian's packages are from: this host's apt configuration names no "
            "Debian mirror, so set DEBIAN_MIRROR to one (a URL that ends in /debian)"
        )
    security += [f"{uri}-security" for uri in named[len(security) :]]
    return [{"debian": a, "debian-security": b} for a, b in zip(named, security, strict=False)]


def _of_apt() -> dict[str, list[str]]:
    """Return the addresses in the apt configuration of a Debian host, by Debian's archive."""
    found: dict[str, list[str]] = {"debian": [], "debian-security": []}
    with contextlib.suppress(OSError, ImageError):
        system = platform.freedesktop_os_release()
        if system["ID"] == "debian":
            code = system.get("VERSION_CODENAME", "sid")
            argv = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"]
            for line in sorted({*call([*argv, "Created-By: Packages"], "asking apt").splitlines()}):
                release, _, uri = line.partition(" ")
                if release in (code, "sid", "unstable", f"{code}-security"):
                    archive = "debian-security" if release.endswith("-security") else "debian"
                    found[archive].append(uri.rstrip("/"))
    return found
