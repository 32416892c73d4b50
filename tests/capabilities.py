"""What this machine can do, asked by tests: ``need("dali")``.

A test that needs something a machine may lack calls ``need`` first. It is then skipped, with the
reason, where the thing is absent; but it FAILS where the environment variable ``IOBENCH_REQUIRE``
names the capability (comma separated; ``all`` names every one), so that a machine which is known
to have it cannot lose a test silently. `.ci/run` sets that variable.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Counter, Dict, Iterable, List, Optional

import pytest

#: Where set-up puts pytest for Caffe's Python, below .tools/.
PYTEST_FOLDER = "pytest-caffe"
#: What `tests/run.sh` makes beside the tests that are not marked `system`: those cannot need it.
MADE_BESIDE = ("image", "caffe-image", "caffe")

_CACHESTAT = 451  # the same number on every 64-bit architecture
_ANSWERS: Dict[str, str] = {}
_of_system = True


def need(name: str) -> None:
    """Skip the calling test unless this machine has ``name``; fail where it is required."""
    if name in MADE_BESIDE and not _of_system:
        pytest.fail(f"what needs {name} is to be marked `system`", pytrace=False)
    reason = missing(name)
    if not reason:
        return
    if required(name):
        pytest.fail(f"{name} is named in IOBENCH_REQUIRE, but: {reason}", pytrace=False)
    pytest.skip(f"needs {name}: {reason}")


def begin(item: pytest.Item) -> None:
    """Take note of which test calls :func:`need` from now on."""
    global _of_system
    _of_system = item.get_closest_marker("system") is not None


def need_modules(modules: Iterable[str]) -> None:
    """Do the same for the modules that a member requires; one without a name here has its own."""
    for module in modules:
        name = OF_MODULES.get(module, module)
        CAPABILITIES.setdefault(name, _module(module))
        need(name)


def skipped(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Count the tests that :func:`need` skipped, by capability."""
    reasons = (str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple))
    found = (re.match(r"Skipped: needs ([\w-]+): ", reason) for reason in reasons)
    return Counter(match[1] for match in found if match)


def missing(name: str) -> str:
    """Return why the capability is absent, "" when it is there. KeyError for an unknown name."""
    if name not in CAPABILITIES:
        raise KeyError(f"no capability {name!r}; there are: {', '.join(sorted(CAPABILITIES))}")
    if name not in _ANSWERS:
        _ANSWERS[name] = CAPABILITIES[name]()
    return _ANSWERS[name]


def required(name: str) -> bool:
    """Return whether the environment says that this machine must have the capability."""
    listed = {part.strip() for part in os.environ.get("IOBENCH_REQUIRE", "").split(",")}
    return name in listed or "all" in listed


def unknown_requirements() -> List[str]:
    """Return names in IOBENCH_REQUIRE that no test could ever ask for."""
    listed = {part.strip() for part in os.environ.get("IOBENCH_REQUIRE", "").split(",")}
    return sorted(listed - set(CAPABILITIES) - {"", "all"})


def _root() -> str:
    return "" if os.geteuid() == 0 else "not root"


def _readable_clone() -> str:
    """Ask as another user: a clone in root's home is closed to them."""
    if _root() or shutil.which("runuser") is None:
        return "needs root, and runuser, to become another user"
    file = Path(__file__).resolve()
    asked = ["runuser", "-u", "nobody", "--", "test", "-r", str(file)]
    closed = subprocess.run(asked, capture_output=True, check=False).returncode
    return f"other users cannot read {file.parent.parent}: clone elsewhere" if closed else ""


def _program(*names: str) -> Callable[[], str]:
    def check() -> str:
        absent = [name for name in names if shutil.which(name) is None]
        return f"no program {', '.join(absent)} on PATH" if absent else ""

    return check


def _module(*names: str) -> Callable[[], str]:
    def check() -> str:
        absent = [name for name in names if not _importable(name)]
        return f"no module {', '.join(absent)}" if absent else ""

    return check


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _loop() -> str:
    """Attach a loop device to a small file, and detach it again."""
    if _root():
        return "loop devices need root"
    if shutil.which("losetup") is None or shutil.which("mkfs.ext4") is None:
        return "no losetup or mkfs.ext4"
    with tempfile.NamedTemporaryFile() as image:
        os.truncate(image.name, 1 << 20)
        attach = ["losetup", "--find", "--show", image.name]
        done = subprocess.run(attach, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"losetup: {done.stderr.strip()}: `make test-host` as root"
        subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True)
    return ""


def _memory_group() -> str:
    """The cgroup v1 limit of memory, which holds the pages of files that a process has read."""
    knob = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    writable = os.access(knob.parent, os.W_OK)
    return "" if knob.exists() and writable else f"no {knob.parent} to write to (cgroup v1)"


def _blkio() -> str:
    """The cgroup v1 throttle: the one that slows a device below the page cache exactly."""
    knob = Path("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device")
    if not knob.exists():
        return f"no {knob} (cgroup v1 blkio throttling)"
    return "" if os.access(knob.parent, os.W_OK) else f"{knob.parent} is not writable"


def _hosts() -> str:
    """Several hosts on this machine: namespaces, sshd, Open MPI."""
    reason = _root() or _program("unshare", "nsenter", "ip", "ssh", "ssh-keygen", "mpirun")()
    sshd = "" if Path("/usr/sbin/sshd").exists() else "no /usr/sbin/sshd"
    wanted = "Debian: openssh-server openssh-client openmpi-bin iproute2 util-linux"
    return f"{reason or sshd} ({wanted})" if reason or sshd else ""


def _hydra() -> str:
    """Ask the launcher itself: mpiexec.hydra may be another program's name."""
    from iobench.core import registry

    return registry.load("launchers", "hydra").make().available()


def _tbf() -> str:
    """Shape the traffic of a network namespace of its own (Debian: iproute2)."""
    if reason := _root() or _program("unshare", "tc")():
        return reason
    script = "tc qdisc add dev lo root tbf rate 1mbit burst 32kb latency 1s"
    command = ["unshare", "-n", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"tc: {done.stderr.strip()}" if done.returncode else ""


def _tun() -> str:
    usable = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    return "" if usable else "/dev/net/tun cannot be opened"


def _slurm() -> str:
    absent = _program("slurmctld", "slurmd", "srun", "sbatch", "munged")()
    return f"{absent} (Debian: slurmctld slurmd slurm-client munge)" if absent else ""


def _chromium() -> str:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        return "no program chromium on PATH"
    if shutil.which("chromedriver") is None:
        return "no program chromedriver on PATH (Debian: chromium-driver)"
    return _module("selenium")()


def _cachestat() -> str:
    """Ask cachestat(2) about a file of our own (Linux 6.5; ENOSYS under some seccomp filters)."""
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"syscall number unknown on {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    span = (ctypes.c_uint64 * 2)(0, 0)
    answer = (ctypes.c_uint64 * 5)()
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.flush()
        failed = libc.syscall(_CACHESTAT, file.fileno(), span, answer, 0)
    return f"cachestat: {os.strerror(ctypes.get_errno())}" if failed else ""


def _package_index() -> str:
    """Ask pip, as it is set up here, for one small package of ours, in its pinned version."""
    pins = (Path(__file__).parent.parent / "requirements/driver.txt").read_text().splitlines()
    package = next(pin for pin in pins if pin.startswith("click=="))
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir"]
        done = subprocess.run(
            [*pip, package, "-d", folder], capture_output=True, text=True, check=False
        )
    return "pip reaches no package index" if done.returncode else ""


def _cuda() -> str:
    return "" if Path("/dev/nvidiactl").exists() else "no /dev/nvidiactl"


def _runtime(name: str) -> Callable[[], str]:
    """Ask the runtime itself, which probes: a daemon's answer, a user namespace made ..."""

    def check() -> str:
        from iobench.core import registry

        reason = registry.unavailable("runtimes", name)
        if reason and name == "docker" and not _root() and shutil.which("dockerd"):
            return ""  # the tests start a private daemon
        return reason

    return check


def _user_namespaces() -> str:
    from iobench.host import probes

    return probes.user_namespaces()


def _overlay() -> str:
    """Mount an overlay of folders in memory, seen by the asking process alone."""
    script = (
        "mount -t tmpfs none {0} && mkdir {0}/l {0}/u {0}/w {0}/d && mount -t overlay "
        "-o userxattr,lowerdir={0}/l,upperdir={0}/u,workdir={0}/w none {0}/d && touch {0}/d/file"
    )
    if shutil.which("unshare") is None:
        return "no program unshare on PATH"
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script.format(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no overlay in a user namespace: {done.stderr.strip()}" if done.returncode else ""


def image_folder() -> Path:
    """Where the tests' images are: IOBENCH_TEST_IMAGES, else the tree's own."""
    return Path(os.environ.get("IOBENCH_TEST_IMAGES") or Path(__file__).parent.parent / "images")


def _image(name: str = "torch") -> str:
    record = image_folder() / f"{name}.json"
    return "" if record.exists() else f"no {record}: `make images`, or set IOBENCH_TEST_IMAGES"


def _caffe() -> str:
    """Ask for the stack that bare trials would take; whether it starts is for the tests to say."""
    from iobench.core import registry

    return registry.unavailable("stacks", "caffe")


def _pycaffe() -> str:
    absent = _module("caffe")()
    return (
        f"{absent} in this Python; tests/system/caffe/test_python39.py runs these in Caffe's"
        if absent
        else ""
    )


def _caffe_pytest() -> str:
    from iobench.host import tools

    return "" if (tools.FOLDER / PYTEST_FOLDER).is_dir() else "no .tools/pytest-caffe: `make test`"


def fuse_program(name: str) -> Optional[str]:
    """Return a program that mounts through FUSE: the system's, or apptainer's."""
    return shutil.which(name) or next(
        (str(p) for p in Path(".tools").glob(f"apptainer/libexec/*/bin/{name}")), None
    )


def squashfuse() -> Optional[str]:
    """Return the program that mounts a squashfs without root."""
    return fuse_program("squashfuse")


def _fuse() -> str:
    absent = [name for name in ("squashfuse", "fuse-overlayfs") if not fuse_program(name)]
    if absent or not shutil.which("mksquashfs"):
        return f"no program {', '.join(absent) or 'mksquashfs'}"
    usable = os.access("/dev/fuse", os.R_OK | os.W_OK)
    return "" if usable else "/dev/fuse cannot be opened: `make test-host` as root"


def _open_fuse() -> str:
    """Ask for ordinary users: root opens what is closed to them."""
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse: `make test-host` as root"
    every = os.stat("/dev/fuse").st_mode & 0o666 == 0o666
    return "" if every else "/dev/fuse is closed to ordinary users: `make test-host` as root"


def _mfusepy() -> str:
    """What benchmarks/delayed_mount.py starts (Debian: fuse3)."""
    absent = _module("mfusepy")() or _program("fusermount3")()
    opened = os.access("/dev/fuse", os.R_OK | os.W_OK)
    return absent or ("" if opened else "/dev/fuse cannot be opened: `make test-host`")


#: Modules whose capability has another name.
OF_MODULES = {
    "nvidia.dali": "dali",
    "h5py": "hdf5",
    "plyvel": "leveldb",
    "caffe": "pycaffe",
    "spdl.pipeline": "spdl",
    "google_crc32c": "crc32c",
    "array_record": "arrayrecord",
}


def _gluster() -> str:
    """What tests/build/gluster.py starts (Debian: glusterfs-server, glusterfs-client, iproute2)."""
    absent = _program("glusterd", "gluster", "glusterfs", "ip", "nsenter")()
    opened = os.access("/dev/fuse", os.R_OK | os.W_OK)
    return absent or _loop() or ("" if opened else "/dev/fuse cannot be opened: `make test-host`")


def _moosefs() -> str:
    """What tests/build/moosefs.py starts (Debian: moosefs-master, -chunkserver, -client)."""
    absent = _program("mfsmaster", "mfschunkserver", "mfsmount", "mfsfileinfo", "ip", "nsenter")()
    opened = os.access("/dev/fuse", os.R_OK | os.W_OK)
    return absent or _loop() or ("" if opened else "/dev/fuse cannot be opened: `make test-host`")


def _sshfs() -> str:
    """What tests/build/sshfs.py starts (Debian: sshfs, and what the hosts need)."""
    opened = os.access("/dev/fuse", os.R_OK | os.W_OK)
    absent = _hosts() or _program("sshfs")() or _loop()
    return absent or ("" if opened else "/dev/fuse cannot be opened: `make test-host`")


#: name -> a function that returns "" or why it is absent. Add a line for a new capability.
CAPABILITIES: Dict[str, Callable[[], str]] = {
    "root": _root,
    "readable-clone": _readable_clone,
    "loop": _loop,
    "blkio": _blkio,
    "memory-group": _memory_group,
    "fio": _program("fio"),
    "chromium": _chromium,
    "strace": _program("strace"),
    "git": _program("git"),
    "squashfs": _program("mksquashfs", "unsquashfs"),
    "fuse": _fuse,
    "open-fuse": _open_fuse,
    "mfusepy": _mfusepy,
    "gluster": _gluster,
    "moosefs": _moosefs,
    "sshfs": _sshfs,
    "make": _program("make"),
    "gcc": _program("gcc"),
    "mpirun": _program("mpirun"),
    "hydra": _hydra,
    "hosts": _hosts,
    "slurm": _slurm,
    "tbf": _tbf,
    "tun": _tun,
    "dali": _module("nvidia.dali"),
    "torch": _module("torch"),
    "lmdb": _module("lmdb"),
    "hdf5": _module("h5py"),
    "leveldb": _module("plyvel"),
    "pyarrow": _module("pyarrow"),
    "spdl": _module("spdl.pipeline"),
    "simpy": _module("simpy"),
    "webdataset": _module("webdataset"),
    "crc32c": _module("google_crc32c"),
    "grain": _module("grain"),
    "arrayrecord": _module("array_record"),
    "caffe": _caffe,
    "pycaffe": _pycaffe,
    "caffe-pytest": _caffe_pytest,
    "sklearn": _module("sklearn"),
    "cachestat": _cachestat,
    "package-index": _package_index,
    "cuda": _cuda,
    "bare": _runtime("bare"),
    "unpacked": _runtime("unpacked"),
    "docker": _runtime("docker"),
    "podman": _runtime("podman"),
    "apptainer": _runtime("apptainer"),
    "charliecloud": _runtime("charliecloud"),
    "userns": _user_namespaces,
    "overlay": _overlay,
    "image": _image,
    "caffe-image": lambda: _image("caffe"),
}
