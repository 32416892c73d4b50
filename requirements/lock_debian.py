"""Writes debian-bullseye.txt anew: the versions, sha256 and pool paths that Debian has today.

    .venv/bin/python requirements/lock_debian.py [PACKAGE ...]

The packages are those of the file, and the ones named here; remove a line to drop one.  Whether the
set is complete is checked whenever a prefix is made: it names the library that no package has.
Needs gpgv and Debian's archive keyring: the indexes are taken only with Debian's signature.
DEBIAN_MIRROR, DEBIAN_SECURITY_MIRROR: where from [this host's apt configuration].  An image
that was built from the old file is stale afterwards.
"""

import datetime
import hashlib
import lzma
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Dict, Set, Tuple

from iobench.images.base import mirrors

SUITE, ARCHITECTURE = "bullseye", "amd64"
LOCK = Path(__file__).with_name(f"debian-{SUITE}.txt")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: Name of the archive -> its suites.
SUITES = {"debian": (SUITE, f"{SUITE}-updates"), "debian-security": (f"{SUITE}-security",)}
Entry = Tuple[str, str, str]  # version, sha256, archive and path in it


def fetch(url: str) -> bytes:
    """Return what a URL holds."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def signed(release: bytes) -> str:
    """Return the text of an InRelease file whose signature is Debian's; else raise."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "InRelease"), Path(folder, "Release")
        file.write_bytes(release)
        argv = ["gpgv", "--quiet", "--keyring", KEYRING, "--output", str(out), str(file)]
        subprocess.run(argv, check=True, capture_output=True)
        return out.read_text()


def index(url: str, suite: str) -> str:
    """Return the package index of a suite, verified."""
    release = signed(fetch(f"{url}/dists/{suite}/InRelease"))
    name = f"main/binary-{ARCHITECTURE}/Packages.xz"
    sums = release.partition("\nSHA256:\n")[2]
    wanted = re.search(rf"^ (\w{{64}}) +\d+ {re.escape(name)}$", sums, flags=re.M)
    packed = fetch(f"{url}/dists/{suite}/{name}")
    if wanted is None or hashlib.sha256(packed).hexdigest() != wanted[1]:
        raise SystemExit(f"{url}: {name} of {suite} is not the signed one")
    return lzma.decompress(packed).decode()


def newest(names: Set[str]) -> Dict[str, Entry]:
    """Return package -> its newest version in any suite, for those of ``names`` that are there."""
    found: Dict[str, Entry] = {}
    for archive, url in mirrors()[0].items():
        for suite in SUITES[archive]:
            for text in index(url, suite).split("\n\n"):
                name = text[len("Package: ") :].partition("\n")[0]
                if name not in names:
                    continue
                fields = dict(re.findall(r"^(Version|SHA256|Filename): (.*)$", text, flags=re.M))
                if _newer(fields["Version"], found.get(name, ("",))[0]):
                    path = f"{archive}/{fields['Filename']}"
                    found[name] = (fields["Version"], fields["SHA256"], path)
    return found


def _newer(version: str, than: str) -> bool:
    return (
        not than
        or subprocess.run(["dpkg", "--compare-versions", version, "gt", than]).returncode == 0
    )


def main() -> None:
    """Rewrite the lock."""
    old = LOCK.read_text().splitlines()
    today = f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT000000Z}"
    header = [re.sub(r"^# snapshot .*", f"# snapshot {today}", s) for s in old if s.startswith("#")]
    names = {s.partition("=")[0] for s in old if s and not s.startswith("#")} | {*sys.argv[1:]}
    have = newest(names)
    if missing := sorted(names - set(have)):
        raise SystemExit(f"not in {SUITE}: {', '.join(missing)}")
    rows = ["{}={} {} {}".format(name, *have[name]) for name in sorted(names)]
    LOCK.write_text("\n".join([*header, *rows]) + "\n")


if __name__ == "__main__":
    main()
