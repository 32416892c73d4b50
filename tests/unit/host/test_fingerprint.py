"""What a fingerprint holds, and that differences are said in words and volatile facts are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.analysis.confounders import differences
from iobench.host import cgroups, fingerprint
from tests.capabilities import need

HERE = Path(__file__)


def collect_in(env: dict, prefix: tuple = (), path: str = str(HERE)) -> dict:
    """Take the fingerprint in a fresh process, as a worker does."""
    code = (
        "import json, sys; from pathlib import Path; from iobench.host.fingerprint import collect; "
        "print(json.dumps(collect(Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code, path],
        env={**os.environ, **env},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_it_is_json_and_two_processes_alike_do_not_differ() -> None:
    first, second = collect_in({}), collect_in({})
    assert first["pid"] != second["pid"]
    assert differences(first, second) == []


def test_it_imports_no_framework() -> None:
    code = (
        "import sys; from pathlib import Path; from iobench.host.fingerprint import collect; "
        "collect(Path('/')); print(sorted({'torch', 'lmdb', 'h5py', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE.parent.parent, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_thread_counts_and_affinity_differ() -> None:
    cpu = min(os.sched_getaffinity(0))
    plain = collect_in({"OMP_NUM_THREADS": "1"})
    other = collect_in({"OMP_NUM_THREADS": "7"}, prefix=("taskset", "-c", str(cpu)))
    lines = differences(plain, other)
    assert "OMP_NUM_THREADS: 1 against 7" in lines
    assert any(line.startswith("affinity:") for line in lines) == (len(os.sched_getaffinity(0)) > 1)


def test_variables_that_choose_a_library_s_instructions_count() -> None:
    chosen = {"OPENBLAS_CORETYPE": "Nehalem", "ATEN_CPU_CAPABILITY": "default", "EDITOR": "vi"}
    assert list(fingerprint.steering(chosen)) == ["ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE"]


def test_the_mount_under_the_data_differs() -> None:
    lines = differences(collect_in({}), collect_in({}, path="/dev/shm"))
    assert any(line.startswith("mount fstype:") and "tmpfs" in line for line in lines)


@pytest.mark.parametrize(
    ("a", "b", "lines"),
    [
        ({"pid": 1}, {"pid": 2}, []),
        ({"libraries": {"numpy": "1"}}, {"libraries": {"numpy": "2"}}, ["numpy: 1 against 2"]),
        ({"libraries": {"lmdb": "1"}}, {"libraries": {}}, ["lmdb: 1 against absent"]),
        ({"limits": {"cpus": None}}, {"limits": {"cpus": 1.5}}, ["limits cpus: none against 1.5"]),
        ({"affinity": [0, 1]}, {"affinity": [1]}, ["affinity: 0,1 against 1"]),
        ({"affinity": (0, 1)}, {"affinity": [0, 1]}, []),
    ],
)
def test_differences(a: dict, b: dict, lines: list) -> None:
    assert differences(a, b) == lines


def test_versions_are_those_of_the_distributions() -> None:
    import numpy

    assert fingerprint.collect(HERE, {"numpy": "numpy"})["libraries"]["numpy"] == numpy.__version__


@pytest.mark.slow
def test_a_wheel_for_another_cuda_release_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("some_dali_cuda130", "2.4.0"), ("some_dali_cudart", "9")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        words = f"Name: {name.replace('_', '-')}\nVersion: {version}\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{words}")
    monkeypatch.syspath_prepend(tmp_path)
    assert fingerprint.version_of("some-dali-cuda120") == "2.4.0"
    assert fingerprint.version_of("some-dali") == ""


def test_a_cgroup_memory_limit_is_seen() -> None:
    need("root")
    top = Path("/sys/fs/cgroup/memory")
    if not (top / "memory.limit_in_bytes").exists():
        pytest.skip("no cgroup v1 memory hierarchy here")
    found = cgroups.membership("memory")
    assert found is not None
    group = found[0] / found[1].lstrip("/") / f"iobench-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(512 << 20))
        join = (
            "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); "
            "os.execvp(sys.argv[2], sys.argv[2:])"
        )
        prefix = (sys.executable, "-c", join, str(group / "cgroup.procs"))
        limited = collect_in({}, prefix=prefix)
    finally:
        group.rmdir()
    assert limited["limits"]["memory_bytes"] == 512 << 20
    assert any(line.startswith("limits memory bytes:") for line in differences(limited, {}))


@pytest.mark.parametrize(
    ("layout", "memory", "cpus"),
    [
        ({"cgroup": "0::/job\n", "job/memory.max": "1000\n", "memory.max": "max\n"}, [1000], None),
        ({"cgroup": "0::/job\n", "job/cpu.max": "150000 100000"}, [], 1.5),
        (
            {"cgroup": "0::/a/b\n", "a/b/memory.max": "max", "a/memory.max": "77"},
            [77],
            None,
        ),
        (
            {
                "cgroup": "4:memory:/m\n3:cpu,cpuacct:/c\n",
                "memory/m/memory.limit_in_bytes": "5000",
                "memory/memory.limit_in_bytes": str((1 << 63) - 4096),
                "cpu/c/cpu.cfs_quota_us": "-1",
                "cpu/c/cpu.cfs_period_us": "100000",
            },
            [5000],
            None,
        ),
        (
            {
                "cgroup": "3:cpu,cpuacct:/c\n",
                "cpu,cpuacct/c/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/c/cpu.cfs_period_us": "100000",
            },
            [],
            0.5,
        ),
    ],
)
def test_limits_of_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict, memory: list, cpus: object
) -> None:
    for name, text in layout.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "cgroup")
    assert cgroups.memory_limits_bytes() == memory
    assert cgroups.cpu_limit() == cpus
