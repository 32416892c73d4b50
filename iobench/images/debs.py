"""The Debian packages of a lock: fetched by their sha256 from whatever mirror still has them."""

from __future__ import annotations

import concurrent.futures
import http.client
import io
import shutil
import tarfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from iobench.core.clock import clock
from iobench.core.errors import ImageError
from iobench.core.protocols import Say
from iobench.images import base, recipe
from iobench.images.disk import check_space, partial, sha256

_SPACE = 2e8
_AT_ONCE = 4
_TIMEOUT_S = 60.0
#: For how long a mirror that answers nothing is asked again: one that has answered before, and one
#: that never has.
PATIENCE_S, FIRST_PATIENCE_S = 180.0, 10.0
_PAUSE_S = 2.0


class Package(NamedTuple):
    """One line of a lock.  ``path``: the name of Debian's archive, and the path in it."""

    name: str
    version: str
    sha256: str
    path: str

    @property
    def file(self) -> str:
        """The name of its file."""
        return self.path.rpartition("/")[2]


def packages(lock: Path) -> tuple[Package, ...]:
    """Return the packages of a lock: lines ``package=version sha256 path``."""
    rows = [line.split() for line in lock.read_text().splitlines() if line[:1] not in ("", "#")]
    return tuple(Package(*row[0].split("=", 1), *row[1:3]) for row in rows)


def fetch(suite: str, cache: Path, say: Say) -> Path:
    """Return a folder of ``cache`` that holds every package of the suite's lock, verified."""
    lock = recipe.lock(suite)
    wanted = packages(lock)
    folder = cache / f"debs-{suite}"
    folder.mkdir(parents=True, exist_ok=True)
    absent = [package for package in wanted if not _there(package, folder)]
    if not absent:
        return folder
    check_space(folder, _SPACE, "fetching Debian's packages")
    say(f"fetching {len(absent)} of {len(wanted)} Debian packages by their sha256 (about 120 MB)")
    mirrors = _Mirrors(base.mirrors(), say)
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda package: mirrors.bring(package, folder), absent):
            pass  # the first failure is raised here, and cancels what waits
    return folder


def unpack(package: Path, root: Path) -> None:
    """Unpack a .deb into ``root``, owners and devices left out; needs neither dpkg nor root."""
    with open(package, "rb") as file, _data_of(file, package) as archive:
        for member in archive:
            if member.isdev():
                continue
            if member.issym() or member.isreg() or member.islnk():
                (root / member.name).unlink(missing_ok=True)
            member.mode |= 0o700 if member.isdir() else 0o600
            archive.extract(member, root, set_attrs=not member.issym(), **_TRUSTED)


#: The packages are compared with a sha256: their absolute links are wanted.
_TRUSTED: dict[str, Any] = (
    {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
)


def _data_of(file: IO[bytes], package: Path) -> tarfile.TarFile:
    """Return the archive ``data.tar.*`` of an ar file."""
    if file.read(8) == b"!<arch>\n":
        while len(head := file.read(60)) == 60:
            size = int(head[48:58])
            if head.startswith(b"data.tar"):
                return tarfile.open(fileobj=io.BytesIO(file.read(size)), mode="r:*")
            file.seek(size + size % 2, 1)
    raise ImageError(f"{package} is no Debian package: remove it and try again")


def _there(package: Package, folder: Path) -> bool:
    path = folder / package.file
    return path.exists() and sha256(path) == package.sha256


class _Mirrors:
    """Mirrors that are tried in turn; one that stays silent is not asked again.

    A lookup of a name, a proxy and a busy server fail for a minute at times: a mirror is asked
    again for a while before it is given up.
    """

    def __init__(self, addresses: Sequence[dict[str, str]], say: Say) -> None:
        self._addresses = addresses
        self._say = say
        self._hosts: dict[str, _Host] = {}
        self._lock = threading.Lock()

    def bring(self, package: Package, folder: Path) -> None:
        """Fetch a package into ``folder``.  Raises ImageError where no mirror gives it."""
        archive, _, path = package.path.partition("/")
        why = []
        for row in self._addresses:
            url = f"{row[archive].rstrip('/')}/{urllib.parse.quote(path, safe='/~:')}"
            host = urllib.parse.urlsplit(url).netloc
            reason = self._try(url, host, package, folder)
            if not reason:
                return
            why.append(f"{host}: {reason}")
        raise ImageError(
            f"no mirror gives the Debian package {package.name} {package.version} "
            f"({'; '.join(dict.fromkeys(why))}): connect this machine to one, name one by "
            "DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR, or bring what another machine made "
            "(docs/caffe.md)"
        )

    def _try(self, url: str, name: str, package: Package, folder: Path) -> str:
        """Return why a package did not come, "" where it came."""
        with self._lock:
            host = self._hosts.setdefault(name, _Host())
        while not host.silent:
            answered, reason = _bring(url, package, folder)
            if answered:
                host.answered, host.failing_since = True, None
                return reason
            self._wait(name, host, reason)
        return host.silent

    def _wait(self, name: str, host: _Host, reason: str) -> None:
        patience = PATIENCE_S if host.answered else FIRST_PATIENCE_S
        with self._lock:
            now = clock()
            if host.failing_since is None:
                host.failing_since = now
                self._say(f"{name} does not answer ({reason}): trying again for {patience:g} s")
            if now - host.failing_since >= patience:
                host.silent = reason
                return
        time.sleep(min(_PAUSE_S, patience))


class _Host:
    """A mirror's host, which the threads share.  ``silent``: why it is not asked again."""

    def __init__(self) -> None:
        self.answered = False
        self.failing_since: float | None = None
        self.silent = ""


#: HTTP's "too many requests"; from 500 on the server says that the fault is its own.
_LATER = 429


def _bring(url: str, package: Package, folder: Path) -> tuple[bool, str]:
    """Fetch a file.  Return whether the host answered, and why the file did not come, "" if it did.

    A host that tells to come again later has not answered.
    """
    try:
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer,
            partial(folder / package.file) as path,
        ):
            with open(path, "wb") as out:
                shutil.copyfileobj(answer, out, 1 << 20)
            if answer.length:  # bytes that are still to come
                raise ConnectionError("it was cut short")
            found = sha256(path)
            if found != package.sha256:
                raise ValueError(f"its file is another one (sha256 {found[:12]})")
    except urllib.error.HTTPError as error:
        return error.code != _LATER and error.code < 500, f"HTTP {error.code}"
    except ValueError as error:
        return True, str(error)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as err:
        return False, str(getattr(err, "reason", err)) or type(err).__name__
    return True, ""
