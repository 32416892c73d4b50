"""Caffe's prefix beside a host that has the same libraries: it loads none of the host's."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Dict, Set

import pytest

import iobench
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.dataset import sample_digest
from iobench.core.records import VALID
from iobench.data import convert, index
from iobench.data.index import Row
from iobench.run.trial import TrialSettings
from tests.build import photos
from tests.build.attempts import attempted
from tests.capabilities import need

pytestmark = pytest.mark.system

#: glibc is the host's: its libraries, its locales and its character sets.
GLIBC = (
    r"/(usr/)?lib(64)?/(x86_64-linux-gnu/)?lib(c|m|mvec|dl|rt|util|pthread|resolv|anl|nss_\w+)\.so"
)
ALLOWED = re.compile(rf"{GLIBC}|/usr/lib/locale/|/usr/lib/x86_64-linux-gnu/gconv/|/etc/ld\.so\.")
#: A library, a component, a folder that is searched for them, a list of those to load.
LOADED = re.compile(
    r".*\.so(\.|$)|.*(/plugins?|/components|/hwloc|/libfabric|/ucx|/engines[^/]*|/gdalplugins)(/|$)"
    r"|.*mca-params|/etc/(OpenCL|libibverbs\.d|openmpi)(/|$)"
)
CALL = re.compile(r'(execve|open|openat|access|stat|newfstatat|statx)\((?:\w+, )?"([^"]+)".*= (.+)')


def host_files(folder: Path, prefix: str) -> Dict[str, Set[str]]:
    """Return program -> libraries and plug-ins outside the prefix that it opened or looked for.

    Of the prefix's programs alone.  ``folder``: where strace wrote a file for each process, which
    begins with the program's start unless it is a fork of one.
    """
    found: Dict[str, Set[str]] = {}
    for log in folder.iterdir():
        program = "a fork"
        for line in log.read_text(errors="replace").splitlines():
            call = CALL.match(line)
            if call is None:
                continue
            name, path, answer = call.groups()
            if name == "execve":
                program = os.path.realpath(path) if answer == "0" else program
            elif program == "a fork" or program.startswith(prefix):
                wanted = LOADED.match(path) and not ALLOWED.match(path)
                files = found.setdefault(os.path.basename(program), set())
                files |= {path} if wanted and not inside(path, prefix) else set()
    return found


def inside(path: str, prefix: str) -> bool:
    """Return whether a path lies in the prefix, in this package or in a trial's work folder.

    By any of their names; the work folder, which is gone now, has a link to the package.
    """
    work = os.path.join(os.path.realpath(tempfile.gettempdir()), "iobench-")
    own = (prefix, os.path.dirname(os.path.realpath(iobench.__file__)), work)
    return not path.startswith("/") or os.path.realpath(path).startswith(own)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    need("caffe")
    need("strace")
    need("lmdb")
    root = tmp_path_factory.mktemp("data")
    rows = []
    for sample in photos.samples(16):
        file = f"{sample.key}.jpg"
        (root / "jpeg" / file).parent.mkdir(parents=True, exist_ok=True)
        (root / "jpeg" / file).write_bytes(sample.data)
        digest = sample_digest(sample.data)
        rows.append(Row(sample.key, sample.label, len(sample.data), digest, file))
    made = index.declare(root, rows, name="t", seed=0, source="tests", jpeg_root=str(root / "jpeg"))
    convert.convert(made, "lmdb")
    return made


def case(trainer: str, ranks: int) -> Case:
    return Case(
        label="c", loader="native", format="lmdb", trainer=trainer, image="caffe", order="stored",
        transform="crop224", batch=4, workers=1, world_size=ranks,
        launcher="mpirun" if ranks > 1 else "local",
        trainer_options={"net": "small", "classes": 3},
    )  # fmt: skip


@pytest.mark.parametrize(("trainer", "ranks"), [("caffe", 2), ("caffe_train", 1)])
def test_a_trial_opens_no_library_of_the_host(
    trainer: str, ranks: int, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not even look for one, so that it holds on a host that has any."""
    logs, home = tmp_path / "logs", tmp_path / "home"
    logs.mkdir()
    for stack in ("openmpi", "pmix"):
        (home / f".{stack}/components").mkdir(parents=True)
        (home / f".{stack}/mca-params.conf").write_text("btl = no_such_component\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu")  # as a site's modules do
    calls = "trace=execve,open,openat,access,stat,newfstatat,statx"
    enter = ["strace", "-ff", "-qq", "-o", str(logs / "of"), "--seccomp-bpf", "-e", calls]
    settings = TrialSettings(limit_s=120.0, enter=enter)
    record = attempted(Trial("1", case(trainer, ranks), "train", "warm"), data, settings)
    assert record.status == VALID, record.reasons
    prefix = os.path.realpath(registry.installed("caffe").prefix)
    found = host_files(logs, prefix)
    assert found.keys() >= {"python3.9", "orterun" if ranks > 1 else "caffe"}
    assert not any(found.values()), {p: sorted(paths) for p, paths in found.items() if paths}
