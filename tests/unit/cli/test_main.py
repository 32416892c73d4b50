"""The command line as scripts use it: real processes, exit status, one line on stderr."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.capabilities import need

COLUMNS = [
    "trial",
    "contrast",
    "block",
    "attempt",
    "pipeline",
    "format",
    "loader",
    "trainer",
    "runtime",
    "launcher",
    "world_size",
    "location",
    "filesystem",
    "placement",
    "order",
    "transform",
    "batch",
    "workers",
    "stage",
    "cache",
    "status",
    "reason",
    "samples",
    "wall_s",
    "wait_s",
    "contention_s",
    "samples_per_s",
    "startup_s",
    "bytes_needed",
    "bytes_read",
    "bytes_storage",
    "resident_before",
    "resident_after",
    "samples_digest",
]

SPEC = """
name = "small"
compute_s = 0.3
budget = "2m"
[dataset]
recipe = "smoke"
samples = 64
[case]
trainer = "emulated"
trainer_options = { step_s = 0.005 }
transform = "rrc224"
batch = 4
workers = 1
[matrix]
pipeline = ["threads:jpeg", "lmdb"]
[ladder]
repeats = 1
[[contrasts]]
pairs = 1
"""


#: One stage of it by a loader that starts sooner, and nothing compared.
SHORT = SPEC.replace('"lmdb"', '"threads:lmdb"')
SHORT = SHORT.partition("[[contrasts]]")[0] + 'stages = ["load"]\n'


def iobench(*words: str, cwd: Path, **kwargs: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "iobench.cli.main", *words]
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command, cwd=cwd, capture_output=True, text=True, timeout=500, check=False, **kwargs
    )


@pytest.mark.slow
def test_help_teaches(tmp_path: Path) -> None:
    done = iobench("--help", cwd=tmp_path)
    assert done.returncode == 0
    for word in ("doctor", "data", "run", "show", "report", "list", "130", "First steps"):
        assert word in done.stdout
    for command in ("doctor", "data", "run", "show", "report", "list"):
        done = iobench(command, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert len(done.stdout) > 100


def test_list_has_every_axis(tmp_path: Path) -> None:
    done = iobench("list", "--json", cwd=tmp_path)
    tables = json.loads(done.stdout)
    assert set(tables) == {
        "formats", "loaders", "decoders", "trainers", "runtimes", "launchers", "filesystems",
        "placements", "stacks", "schedulers", "pipelines", "stages", "specs",
    }  # fmt: skip
    assert {"jpeg", "lmdb", "hdf5", "tar", "null"} <= set(tables["formats"])
    assert {"torch", "dali", "null"} <= set(tables["loaders"])
    assert {"lmdb", "hdf5", "jpeg", "dali", "torch:tar", "dali:lmdb"} <= set(tables["pipelines"])
    assert all(isinstance(v, str) and v for table in tables.values() for v in table.values())


@pytest.mark.parametrize(
    ("key", "late", "expected"),
    [
        (
            "repeats = 1",
            'only = { pipeline = ["lmbd"] }',
            "ladder.only.pipeline: no case has 'lmbd'; allowed: threads:jpeg, lmdb",
        ),
        (
            "samples = 64",
            "samples = 2",
            "batch = 4, and 2 samples a rank are no whole batch",
        ),
    ],
)
def test_a_spec_that_would_fail_late_is_refused_before_anything_is_made(
    key: str, late: str, expected: str, tmp_path: Path
) -> None:
    spec = tmp_path / "late.toml"
    spec.write_text(SPEC.replace(key, late))
    done = iobench("run", str(spec), cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [spec]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "nonsense"), "bench-io"),
        (("run", "--data", "/no/such/place"), "/no/such/place"),
        (("run", "--budget", "soon"), "15m"),
        (("run", "--bugdet", "1m"), "--bugdet"),
        (("show", "nowhere"), "iobench run"),
        (("report", "nowhere"), "iobench run"),
        (("data", "info", "nowhere"), "iobench data make"),
        (("data", "make", "imagnet", "x"), "imagenet-like"),
        (("run", "--out", "/dev/null"), "Not a directory"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    tmp_path: Path, words: tuple[str, ...], expected: str
) -> None:
    done = iobench(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    last = [line for line in done.stderr.splitlines() if line.startswith("iobench: ")]
    assert len(last) == 1
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_smoke_end_to_end(tmp_path: Path) -> None:
    done = iobench("run", "smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    latest = tmp_path / "results" / "latest"
    for name in ("plan.json", "trials.csv", "report.html", "analysis.json"):
        assert (latest / name).stat().st_size > 100
    shown = json.loads(iobench("show", "--json", cwd=tmp_path).stdout)
    assert shown["complete"]


@pytest.mark.slow
def test_a_real_suite_end_to_end(tmp_path: Path) -> None:
    for capability in ("torch", "lmdb", "fio"):
        need(capability)
    (tmp_path / "small.toml").write_text(SPEC)
    done = iobench("run", "small.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    latest = tmp_path / "results" / "latest"
    rows = list(csv.DictReader((latest / "trials.csv").read_text().splitlines()))
    assert list(rows[0])[: len(COLUMNS)] == COLUMNS
    spoilt = [r for r in rows if r["status"] != "VALID"]  # kernels reclaim pages: once more
    assert all(r["attempt"] == "1" and r["reason"].startswith("not warm") for r in spoilt), spoilt
    rows = list({r["trial"]: r for r in rows}.values())
    assert {r["status"] for r in rows} == {"VALID"}
    assert {r["stage"] for r in rows} >= {"ceiling", "read", "decode", "load", "compute", "train"}
    cold = [r for r in rows if r["cache"] == "cold" and r["stage"] in ("read", "load", "train")]
    assert cold
    for row in cold:
        assert float(row["resident_before"]) <= 0.001
        assert float(row["bytes_storage"]) >= 0.98 * float(row["bytes_needed"])
    for row in (r for r in rows if r["cache"] == "warm" and r["stage"] in ("read", "load")):
        assert float(row["resident_before"]) >= 0.999
        assert float(row["bytes_storage"]) <= 0.01 * float(row["bytes_needed"])
    digests = {r["samples_digest"] for r in rows if r["stage"] == "load"}
    assert len(digests) == 1
    assert digests != {""}
    shown = json.loads(iobench("show", "results", "--json", cwd=tmp_path).stdout)
    by_name = {p["pipeline"]: p for p in shown["pipelines"]}
    assert set(by_name) == {"threads:jpeg", "torch:lmdb"}
    for entry in by_name.values():
        assert entry["stages"]["load"]["warm"]["samples_per_s"]["value"] > 0
        assert entry["limits"]["warm"]["regime"] in ("prep-bound", "compute-bound", "fetch-bound")
        assert entry["fetch_stall_s"]["value"] is not None
    assert len(shown["contrasts"]) == 2


@pytest.mark.slow
def test_an_interrupted_suite_keeps_a_report_and_resumes(tmp_path: Path) -> None:
    for capability in ("lmdb", "fio"):
        need(capability)
    (tmp_path / "small.toml").write_text(SHORT)
    driver = subprocess.Popen(
        [sys.executable, "-m", "iobench.cli.main", "run", "small.toml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    latest = tmp_path / "results" / "latest"
    while len(list(latest.glob("runs/*.json"))) < 3:
        assert driver.poll() is None
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGINT)
    _, stderr = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "--resume" in stderr
    assert (latest / "report.html").exists()
    kept = {p.name: p.read_bytes() for p in latest.glob("runs/*.json")}
    done = iobench("run", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {p.name: p.read_bytes() for p in latest.glob("runs/*.json")}.items() >= kept.items()


@pytest.mark.slow
def test_a_users_own_tree_is_copied_and_never_written(tmp_path: Path) -> None:
    for capability in ("lmdb", "fio"):
        need(capability)
    made = iobench("data", "make", "smoke", "made", "--samples", "80", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    tree = tmp_path / "made" / "jpeg"
    victim = sorted(tree.rglob("*.jpg"))[0]
    victim.write_bytes(b"this is no JPEG")
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tree.rglob("*")}
    (tmp_path / "small.toml").write_text(SHORT)
    words = ("run", "small.toml", "--data", str(tree), "--out", "scratch")
    done = iobench(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tree.rglob("*")} == before
    root = next((tmp_path / "scratch" / "data").iterdir())
    facts = iobench("data", "info", str(root), cwd=tmp_path).stdout
    assert victim.name in facts or "1" in facts
    done = iobench("run", "small.toml", "--data", str(tree), "--in-place", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "results" / "latest" / "trials.csv").read_text()
    rows = csv.DictReader(text.splitlines())
    in_place = [r for r in rows if r["format"] == "jpeg" and r["stage"] == "load"]
    assert {r["status"] for r in in_place} == {"EXPLORATORY"}
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tree.rglob("*")} == before


def test_a_dry_run_makes_nothing_and_knows_what_there_is(tmp_path: Path) -> None:
    spec = tmp_path / "dry.toml"
    spec.write_text(SPEC)
    before = iobench("run", str(spec), "--dry-run", cwd=tmp_path)
    assert before.returncode == 0, before.stderr
    assert "64 samples, to be made in data/" in before.stderr
    assert list(tmp_path.iterdir()) == [spec]
    made = iobench("data", "prepare", str(spec), "--json", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["samples"] == 64
    after = iobench("run", str(spec), "--dry-run", cwd=tmp_path)
    assert "dataset: 64 samples of recipe" in after.stderr
    assert after.stdout == before.stdout
    assert {path.name for path in tmp_path.iterdir()} == {spec.name, "data"}


def test_the_spec_of_all_loaders_plans(tmp_path: Path) -> None:
    done = iobench("run", "loaders", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for trial in ("load-warm-torch-jpeg", "train-cold-threads-tar", "compute"):
        assert f"-ladder-{trial}" in done.stdout
    assert " has no effect" not in done.stderr
    assert "comparisons, after these trials: load " in done.stderr


def test_an_argument_without_effect_is_not_ignored(tmp_path: Path) -> None:
    done = iobench("run", "smoke", "--in-place", cwd=tmp_path)
    assert done.returncode == 2
    assert "--in-place is of a tree of your own; name it by --data" in done.stderr
    done = iobench("run", "--resume", "--budget", "4h", cwd=tmp_path)
    assert "note: --budget has no effect: a resumed suite goes on as planned" in done.stderr


@pytest.mark.slow
def test_a_closed_pipe_and_a_poor_locale_are_no_failures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "iobench.cli.main"]
    with subprocess.Popen(
        [*command, "list"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert iobench("run", "smoke", cwd=tmp_path).returncode == 0
    done = iobench("show", cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_a_plugin_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats" / "odd.py").write_text("def x(\n")
    for folder, expected in [(tmp_path, "formats/odd.py"), (tmp_path / "no", "is not a folder")]:
        done = iobench("list", cwd=tmp_path, env={**os.environ, "IOBENCH_PLUGINS": str(folder)})
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert expected in done.stderr


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "iobench.cli.main", "list"]
        done = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith(
        "iobench: standard output cannot be written; nothing else is lost"
    )
    assert done.stderr.endswith("(No space left on device)\n")


@pytest.mark.slow
def test_a_null_pipeline_gets_no_limit_and_no_advice(tmp_path: Path) -> None:
    document = json.loads(iobench("run", "smoke", "--json", cwd=tmp_path).stdout)
    assert document["advice"] == []
    for case in document["pipelines"]:
        for limit in case["limits"].values():
            assert limit["regime"] is None
            assert limit["words"] is None
            assert "null" in limit["reason"]


def test_a_library_that_a_command_lacks_is_named() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None; sys.argv[1:] = ['run', '--help']; "
        "from iobench.cli.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("iobench: pydantic is not installed here: ")
    assert done.stderr.count("\n") == 1
