"""Caffe's prefix: packages fetched by sha256, unpacked without dpkg, and what cannot go wrong."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import http.server
import io
import json
import os
import re
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest

import iobench.images.base as base
import iobench.images.debs as debs
import iobench.images.prefix as prefix
import iobench.images.recipe as recipe
import iobench.images.tree as tree
from iobench.backends.stacks import _prefix
from iobench.core import registry
from iobench.core.errors import ImageError
from iobench.core.members import Installed
from tests.capabilities import need

REQUIREMENTS = Path(__file__).parents[3] / "requirements"
NOBODY = "http://127.0.0.1:9"  # the port "discard": nobody listens


def deb(name: str, files: Dict[str, str], kind: str = "xz") -> bytes:
    """Return a package as dpkg-deb writes one; a file's content "-> x" makes it a link to x."""

    def packed(entries: Dict[str, str]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=f"w:{kind}") as archive:
            for path, content in entries.items():
                info = tarfile.TarInfo(f"./{path}")
                if content.startswith("-> "):
                    info.type, info.linkname = tarfile.SYMTYPE, content[3:]
                info.size = 0 if info.issym() else len(content)
                archive.addfile(info, io.BytesIO(content.encode()))
        return out.getvalue()

    members = [("debian-binary", b"2.0\n"), (f"control.tar.{kind}", packed({"control": name}))]
    members.append((f"data.tar.{kind}", packed(files)))
    out = b"!<arch>\n"
    for member, data in members:
        out += f"{member:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return out


@dataclasses.dataclass
class Site:
    """A mirror on this machine, a lock that names what it has, and who asked for what."""

    folder: Path
    address: str
    asked: List[str]
    lock: Path
    cache: Path
    busy: List[int]  # HTTP errors that are answered first

    def add(self, name: str, *, sha256: str = "", there: bool = True) -> None:
        data = deb(name, {f"usr/share/{name}": name})
        path = self.folder / f"debian/pool/main/x/{name}_1+b1~rc_amd64.deb"
        path.parent.mkdir(parents=True, exist_ok=True)
        if there:
            path.write_bytes(data)
        line = f"{name}=1+b1~rc {sha256 or hashlib.sha256(data).hexdigest()} "
        self.lock.write_text(f"{self.lock.read_text()}{line}{path.relative_to(self.folder)}\n")

    def fetch(self, said: List[str]) -> Path:
        return debs.fetch("bullseye", self.cache, said.append)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    asked: List[str] = []
    busy: List[int] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if busy:
                self.send_error(busy.pop())
            else:
                super().do_GET()

        def log_request(self, *args: object) -> None:
            asked.append(self.path)

        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        lock = tmp_path / "lock.txt"
        lock.write_text("# a comment\n# snapshot 20260101T000000Z\n")
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(recipe, "lock", lambda name: lock)
        several = [f"{at}/debian" for at in (NOBODY, f"{address}/empty", address)]
        monkeypatch.setenv("DEBIAN_MIRROR", " ".join(several))
        monkeypatch.delenv("DEBIAN_SECURITY_MIRROR", raising=False)
        monkeypatch.setattr(debs, "PATIENCE_S", 2.0)
        monkeypatch.setattr(debs, "FIRST_PATIENCE_S", 0.1)
        yield Site(folder, address, asked, lock, tmp_path / "cache", busy)
        server.shutdown()
        thread.join()


def test_mirrors_are_tried_in_turn_and_nothing_is_fetched_twice(site: Site) -> None:
    for name in ("one", "two", "three"):
        site.add(name)
    said: List[str] = []
    folder = site.fetch(said)
    assert "fetching 3 of 3" in said[0]
    assert sum("127.0.0.1:9 does not answer" in line for line in said) == 1
    assert sorted(p.name.split("_")[0] for p in folder.iterdir()) == ["one", "three", "two"]
    assert len([p for p in site.asked if p.startswith("/empty/")]) == 3  # 404, then the next one
    site.asked.clear()
    (folder / "two_1+b1~rc_amd64.deb").write_bytes(b"cut")
    said.clear()
    assert "fetching 1 of 3" in (site.fetch(said), said[0])[1]
    assert {path.rpartition("/")[2].split("_")[0] for path in site.asked} == {"two"}
    site.asked.clear()
    site.fetch(said)
    assert site.asked == []


def test_another_file_under_the_same_name_is_not_taken(site: Site) -> None:
    site.add("one", sha256="0" * 64)
    with pytest.raises(ImageError, match=r"package one 1\+b1~rc .*its file is another one"):
        site.fetch([])
    assert list((site.cache / "debs-bullseye").iterdir()) == []


def patient(site: Site, monkeypatch: pytest.MonkeyPatch, first_s: float) -> None:
    """Let one mirror be all there is, and be asked again after a moment for so long."""
    monkeypatch.setenv("DEBIAN_MIRROR", f"{site.address}/debian")
    monkeypatch.setattr(debs, "PATIENCE_S", 30.0)
    monkeypatch.setattr(debs, "FIRST_PATIENCE_S", first_s)
    monkeypatch.setattr(debs, "_PAUSE_S", 0.01)


def test_a_mirror_that_is_busy_for_a_while_is_asked_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(site, monkeypatch, first_s=30.0)
    for name in ("one", "two"):
        site.add(name)
    site.busy.extend([503, 500, 429, 503])
    said: List[str] = []
    assert len(list(site.fetch(said).iterdir())) == 2
    assert re.search(r"does not answer \(HTTP [45]..\): trying again for 30 s", said[1])
    assert len(site.asked) == 2 + 4


def test_how_long_depends_on_whether_it_has_answered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(site, monkeypatch, first_s=0.0)
    monkeypatch.setattr(debs, "_AT_ONCE", 1)
    site.add("one")
    site.busy.append(503)
    with pytest.raises(ImageError, match=r"Debian package one .*HTTP 503"):
        site.fetch([])
    site.add("two")

    def late(url: str, package: debs.Package, folder: Path) -> Tuple[bool, str]:
        if package.name == "two" and not tries:
            tries.append(url)
            return False, "no name"
        return plain(url, package, folder)

    plain, tries = debs._bring, []
    monkeypatch.setattr(debs, "_bring", late)
    assert len(list(site.fetch([]).iterdir())) == 2


def test_without_a_network_one_line_says_what_to_do(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBIAN_MIRROR", f"{NOBODY}/debian")
    site.add("one")
    with pytest.raises(ImageError, match=r"refused.*DEBIAN_MIRROR") as failed:
        site.fetch([])
    assert "\n" not in str(failed.value)


def test_a_package_that_is_gone_everywhere_is_named(site: Site) -> None:
    site.add("one")
    site.add("gone", there=False)
    with pytest.raises(ImageError, match=r"Debian package gone .*HTTP 404"):
        site.fetch([])


def test_packages_are_from_where_this_host_or_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither code nor scripts know a registry: without a mirror one error says so."""
    monkeypatch.delenv("DEBIAN_MIRROR", raising=False)
    monkeypatch.delenv("DEBIAN_SECURITY_MIRROR", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    system = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(base.platform, "freedesktop_os_release", lambda: system)
    lines = ["bookworm-security http://site/security/", "stable http://other/repository/"]
    lines += ["bookworm http://site/debian/", "bookworm-updates http://site/debian/"]
    (tmp_path / "apt-get").write_text("#!/bin/sh\n" + "".join(f"echo {s}\n" for s in lines))
    (tmp_path / "apt-get").chmod(0o755)
    own = {"debian": "http://site/debian", "debian-security": "http://site/security"}
    assert base.mirrors() == [own]
    for missing in ({"ID": "rocky"}, {"ID": "debian", "VERSION_CODENAME": "duke"}):
        monkeypatch.setattr(base.platform, "freedesktop_os_release", lambda m=missing: m)
        with pytest.raises(ImageError, match=r"names no Debian mirror, so set DEBIAN_MIRROR"):
            base.mirrors()
    monkeypatch.setenv("DEBIAN_MIRROR", "http://a/debian http://b/debian")
    assert base.mirrors()[1]["debian-security"] == "http://b/debian-security"
    monkeypatch.setenv("DEBIAN_SECURITY_MIRROR", "http://c/security")
    assert [row["debian-security"] for row in base.mirrors()] == [
        "http://c/security",
        "http://b/debian-security",
    ]


@pytest.mark.parametrize("kind", ["xz", "gz"])
def test_a_package_is_unpacked_as_dpkg_does(tmp_path: Path, kind: str) -> None:
    file, root = tmp_path / "a.deb", tmp_path / "root"
    root.mkdir()
    files = {"usr/lib/liba.so.1.0": "elf", "usr/lib/liba.so.1": "-> liba.so.1.0",
             "etc/absolute": "-> /nowhere/at/all"}  # fmt: skip
    file.write_bytes(deb("a", files, kind))
    for _ in range(2):  # a second time replaces
        debs.unpack(file, root)
    found = tree.listing(str(root))
    assert set(found) == set(files)
    assert found["etc/absolute"] == "-> /nowhere/at/all"
    assert (root / "usr/lib/liba.so.1").read_text() == "elf"


def test_what_is_no_package_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(b"<html>log in first</html>")
    with pytest.raises(ImageError, match=r"a\.deb is no Debian package"):
        debs.unpack(tmp_path / "a.deb", tmp_path)


def test_the_lock_names_bytes() -> None:
    found = debs.packages(recipe.lock("bullseye"))
    assert {"libcaffe1", "python3-caffe", "openmpi-bin", "libopenblas0-pthread"} <= {
        p.name for p in found
    }
    assert all(len(p.sha256) == 64 and p.file.endswith(".deb") for p in found)
    assert {p.path.partition("/")[0] for p in found} == {"debian", "debian-security"}


def test_every_wheel_has_a_hash() -> None:
    text = (REQUIREMENTS / "caffe.txt").read_text()
    names = [line.split("==")[0] for line in text.splitlines() if "==" in line]
    assert text.count("--hash=sha256:") == len(names) == len(set(names))
    assert {"nvidia-dali-cuda120", "simplejpeg", "lmdb", "h5py"} <= set(names)


@pytest.mark.parametrize(
    ("machine", "libc", "words"),
    [
        ("arm64", ("glibc", "2.36"), "amd64 only, and this machine is arm64"),
        ("amd64", ("glibc", "2.28"), "glibc 2.31 or newer, and this host has glibc 2.28"),
        ("amd64", ("", ""), "this host has another C library"),
    ],
)
def test_a_machine_that_cannot_run_it_is_told_before_anything_is_fetched(
    machine: str, libc: tuple, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "architecture", lambda: machine)
    monkeypatch.setattr(prefix.platform, "libc_ver", lambda: libc)
    with pytest.raises(ImageError, match=words) as failed:
        prefix.install("caffe", tmp_path / "caffe", tmp_path / "cache")
    assert "CAFFE_ROOT" in str(failed.value)
    assert list(tmp_path.iterdir()) == []


def test_only_caffe_is_installed_so(tmp_path: Path) -> None:
    with pytest.raises(
        ImageError, match=r"`make setup` installs its packages; those that are: caffe"
    ):
        prefix.install("torch", tmp_path, tmp_path)


def whole(folder: Path, facts: Dict[str, str]) -> None:
    (folder / "share").mkdir(parents=True)
    (folder / _prefix.RECORD).write_text(json.dumps(facts))


def test_a_current_prefix_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "check_host", lambda: None)
    facts = {"recipe": prefix.wanted("caffe"), "caffe": "1.0"}
    whole(tmp_path / "caffe", facts)
    said: List[str] = []
    assert prefix.install("caffe", tmp_path / "caffe", tmp_path / "cache", said.append) == facts
    assert said == [f"Caffe is up to date in {tmp_path}/caffe: caffe 1.0"]


def test_what_is_there_stays_when_a_new_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "check_host", lambda: None)
    monkeypatch.setattr(prefix.disk, "check_space", lambda *_, **__: None)  # nothing is unpacked
    monkeypatch.setattr(debs, "fetch", lambda *_: tmp_path)
    monkeypatch.setattr(prefix, "wheelhouse", lambda *_: tmp_path)
    monkeypatch.setattr(debs, "packages", lambda lock: ())  # an empty root: the script complains
    whole(tmp_path / "caffe", {"recipe": "old"})
    said: List[str] = []
    with pytest.raises(ImageError, match=r"installing Caffe failed.*usr/bin/caffe is not there"):
        prefix.install("caffe", tmp_path / "caffe", tmp_path / "cache", said.append)
    assert "is of recipe old" in said[0]
    assert _prefix.record(tmp_path / "caffe") == {"recipe": "old"}
    left = [p.name for p in tmp_path.rglob("*") if "partial" in p.name or p.name == "caffe-root"]
    assert left == []


def test_a_library_forgets_where_debian_keeps_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("gcc")
    monkeypatch.syspath_prepend(str(REQUIREMENTS))
    import elf

    (tmp_path / "a.c").write_text("#include <math.h>\ndouble f(double x) { return sin(x); }\n")
    flags = ["-shared", "-fPIC", "-Wl,--enable-new-dtags,-rpath,/usr/lib/somewhere"]
    argv = ["gcc", *flags, "a.c", "-o", "liba.so.1", "-Wl,--no-as-needed", "-lm"]
    subprocess.run(argv, cwd=tmp_path, check=True)
    (found,) = elf.elves(tmp_path)
    assert found.search == ("/usr/lib/somewhere",)
    assert not found.program
    assert found.needed[0] == "libm.so.6"
    elf.forget_path(found)
    (after,) = elf.elves(tmp_path)
    assert after == found._replace(search=(), dynamic=after.dynamic)
    code = f"import ctypes; ctypes.CDLL({str(tmp_path / 'liba.so.1')!r}).f"
    subprocess.run(["python3", "-c", code], check=True)


# -- the real one ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def caffe() -> Installed:
    need("caffe")
    found = registry.installed("caffe")
    if found.own:
        pytest.skip("CAFFE_ROOT is a build of its own")
    return found


def in_stack(stack: Installed, argv: List[str], **env: str) -> str:
    done = subprocess.run(
        argv,
        env={"PATH": os.environ["PATH"], **stack.env, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MAPPED = """
import caffe, numpy.linalg, scipy.linalg, h5py, lmdb, cv2, simplejpeg, blake3, plyvel, ssl, ctypes
from mpi4py import MPI
import nvidia.dali
print({line.split(None, 5)[5] for line in open("/proc/self/maps") if ".so" in line})
"""


@pytest.mark.system
def test_nothing_but_glibc_is_the_hosts(caffe: Installed) -> None:
    mapped = {m.strip() for m in eval(in_stack(caffe, [caffe.python, "-c", MAPPED]))}
    outside = {Path(m).name for m in mapped if not m.startswith(os.path.realpath(caffe.prefix))}
    ours = {name for name in outside if not name.startswith(("ld-", "lib"))}
    assert not ours
    glibc = {"libc", "libm", "libdl", "libpthread", "librt", "libutil", "libresolv", "libmvec"}
    assert {name.split(".so")[0] for name in outside} <= {*glibc, "ld-linux-x86-64", "libnss_files"}
    assert len(mapped) > 200


@pytest.mark.system
def test_blas_is_openblas(caffe: Installed) -> None:
    code = "import caffe; print([l.split()[-1] for l in open('/proc/self/maps') if 'blas' in l][0])"
    library = in_stack(caffe, [caffe.python, "-c", code]).strip()
    ask = (
        "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).openblas_get_config; "
        "f.restype = ctypes.c_char_p; print(f().decode())"
    )
    assert "OpenBLAS 0.3.13" in in_stack(caffe, [caffe.python, "-c", ask, library])


@pytest.mark.system
def test_two_ranks_talk_and_say_nothing(caffe: Installed, tmp_path: Path) -> None:
    code = (
        "import sys; from mpi4py import MPI; c = MPI.COMM_WORLD; "
        "sys.stdout.write('%d of %d\\n' % (c.allreduce(c.rank + 1), c.size))"
    )
    quiet = ["--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"]
    quiet += ["--mca", "btl_vader_single_copy_mechanism", "none"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    argv = ["mpirun", *root, *quiet, "--oversubscribe", "-np", "2", caffe.python, "-c", code]
    done = subprocess.run(
        argv, env={**os.environ, **caffe.env}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["3 of 2"] * 2, "")


@pytest.mark.system
def test_a_fatal_line_reaches_standard_error(caffe: Installed, tmp_path: Path) -> None:
    code = f"import caffe; caffe.Net({str(tmp_path / 'nowhere.prototxt')!r}, caffe.TEST)"
    (tmp_path / "nowhere.prototxt").write_text("layer { no: such }")
    done = subprocess.run(
        [caffe.python, "-c", code], env={**os.environ, **caffe.env}, capture_output=True, text=True
    )
    assert done.returncode == -6
    assert "Check failed" in done.stderr
    assert "\nI" not in f"\n{done.stderr}"


@pytest.mark.system
def test_it_runs_from_another_folder(caffe: Installed) -> None:
    moved = Path(caffe.prefix).with_name("moved elsewhere")
    subprocess.run(["cp", "-al", caffe.prefix, str(moved)], check=True)  # hard links: no copy
    try:
        env = registry.load("stacks", "caffe").prefix_environment(
            str(moved), {"PATH": "/usr/bin:/bin"}
        )
        env["PYTHONPATH"] = ""
        other = dataclasses.replace(caffe, env=env, python=f"{moved}/bin/python3")
        assert str(moved) in in_stack(other, [other.python, "-c", MAPPED])
        assert "caffe version 1.0.0" in in_stack(other, ["caffe", "--version"])
        code = "import caffe; caffe.no_such_thing"
        done = subprocess.run([other.python, "-c", code], env=env, capture_output=True, text=True)
        assert "no_such_thing" in done.stderr
    finally:
        subprocess.run(["rm", "-rf", str(moved)], check=True)


@pytest.mark.system
def test_every_file_is_whole_and_finds_its_libraries(
    caffe: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REQUIREMENTS))
    import caffe_prefix
    import elf

    top = Path(caffe.prefix)
    assert caffe_prefix.unresolved(top) == []
    found = list(elf.elves(top))
    assert len(found) > 300
    absolute = [str(e.path) for e in found for f in e.search if not f.startswith("$ORIGIN")]
    assert [path for path in absolute if "/nvidia" not in path] == []
    links = [p for p in top.rglob("*") if p.is_symlink()]
    assert [p for p in links if os.readlink(p).startswith("/") or not p.exists()] == []
