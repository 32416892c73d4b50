"""kill -9 the driver, or a worker, at random moments; resume; nothing may be lost or doubled.

Each round starts a small real suite, kills one process at a random moment, resumes it, and checks:
exactly one VALID record a planned trial, records finished before the kill byte-identical, the
killed trial's record marked as a second attempt.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks.suites import arguments, dataset, finish

SPEC = """
name = "crash"
budget = "60s"
compute_s = 0.5
[dataset]
recipe = "smoke"
samples = 64
[case]
trainer = "emulated"
trainer_options = {{ step_s = 0.01 }}
transform = "{transform}"
batch = 4
workers = 1
[matrix]
pipeline = ["jpeg", "lmdb"]
[ladder]
stages = ["read", "load", "compute", "train"]
repeats = 1
digest = false
probe = false
[[contrasts]]
pairs = 1
caches = ["warm"]
"""


def digests(folder: Path) -> dict[str, str]:
    """Return file name -> digest of every finished record."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted((folder / "runs").glob("*.json"))
    }


def one_round(victim: str, delay_s: float, spec: Path, data: Path) -> dict[str, Any]:
    """Kill ``victim`` (driver or worker) after ``delay_s``; resume; return what was found."""
    results = Path(tempfile.mkdtemp(prefix="iobench-crash-"))
    command = [sys.executable, "-m", "iobench.cli.main", "run", "--results", str(results)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    driver = subprocess.Popen([*command, str(spec), "--data", str(data)], **quiet)  # type: ignore[call-overload]
    while not list(results.glob("*/journal.jsonl")):
        if driver.poll() is not None:
            raise SystemExit(f"the suite did not start: {driver.stderr.read().decode()}")
        time.sleep(0.01)
    time.sleep(delay_s)
    folder = (results / "latest").resolve()
    killed = kill(driver, victim)
    if victim == "driver":
        driver.wait()
        wait_gone(killed)
    else:
        driver.wait(timeout=120)
    before = digests(folder)
    started = Counter(
        json.loads(line)["trial"] for line in (folder / "journal.jsonl").read_text().splitlines()
    )
    lost = [t for t in started if not usable(folder, t)]
    resumed = subprocess.run([*command, "--resume"], **quiet, timeout=300)  # type: ignore[call-overload]
    after = digests(folder)
    plan = json.loads((folder / "plan.json").read_text())
    per_trial = {t["id"]: usable(folder, t["id"]) for t in plan["trials"]}
    again = run_again(plan["trials"], lost)
    return {
        "victim": victim,
        "delay_s": round(delay_s, 2),
        "killed": killed,
        "finished_before": len(before),
        "planned": len(plan["trials"]),
        "one_valid_each": all(1 <= len(v) <= 1 + (t in again) for t, v in per_trial.items()),
        "finished_unchanged": all(after.get(name) == digest for name, digest in before.items()),
        "killed_is_later_attempt": all(len(v) == 1 < v[0] for v in map(per_trial.get, lost)),
        "lost": lost,
        "resumed_rc": resumed.returncode,
        "resumed_error": resumed.stderr.decode().strip()[-300:] if resumed.returncode else "",
        "stray_processes": stray(str(results)),
    }


def kill(driver: subprocess.Popen[bytes], victim: str) -> list[int]:
    """Kill -9 and return the pids that must be gone afterwards."""
    process = psutil.Process(driver.pid)
    while True:
        children = [c for c in process.children(recursive=True) if "iobench.worker" in cmdline(c)]
        if victim == "driver":
            os.kill(driver.pid, signal.SIGKILL)
            return [c.pid for c in children]
        if children:
            os.kill(children[0].pid, signal.SIGKILL)
            return [children[0].pid]
        if driver.poll() is not None:
            return []
        time.sleep(0.002)


def cmdline(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def wait_gone(pids: list[int], limit_s: float = 10.0) -> None:
    deadline = time.perf_counter() + limit_s
    while any(psutil.pid_exists(p) for p in pids) and time.perf_counter() < deadline:
        time.sleep(0.01)


def run_again(trials: list[dict[str, Any]], lost: list[str]) -> set[str]:
    """Return the trials that a resume measures a second time: a block is run in one go."""

    def block(trial: dict[str, Any]) -> tuple[Any, ...]:
        return trial["contrast"], trial["stage"], trial["block"]

    split = {block(t) for t in trials if t["contrast"] and t["id"] in lost}
    return {t["id"] for t in trials if block(t) in split} - {*lost}


def stray(marker: str) -> list[str]:
    return [c for p in psutil.process_iter() if marker in (c := cmdline(p))]


def usable(folder: Path, trial: str) -> list[int]:
    """Return the attempts of ``trial`` whose record is VALID."""
    found = []
    for path in sorted((folder / "runs").glob(f"{trial}.*.json")):
        record = json.loads(path.read_text())
        if record["status"] == "VALID":
            found.append(record["attempt"])
    return found


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--span", type=float, default=30.0, help="kills fall in these seconds")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    found = dataset(args.data, "smoke", 64, ["lmdb"])
    spec = Path(tempfile.mkdtemp(prefix="iobench-crash-spec-")) / "crash.toml"
    spec.write_text(SPEC.format(transform="rrc224"))
    rows = []
    for i in range(args.rounds):
        victim = ("driver", "worker")[i % 2]
        row = one_round(victim, rng.uniform(0, args.span), spec, Path(found.root))
        rows.append(row)
        print(json.dumps(row), flush=True)
    good = [
        r["one_valid_each"]
        and r["finished_unchanged"]
        and r["killed_is_later_attempt"]
        and r["resumed_rc"] == 0
        and not r["stray_processes"]
        for r in rows
    ]
    print(f"{sum(good)} of {len(good)} kills lost nothing")
    return finish(args, rows, all(good))


if __name__ == "__main__":
    sys.exit(main())
