"""Does `iobench tune --script` cure a script that is slow for a cause that nobody prepared it for?

``benchmarks/strangers/`` has small training scripts and, in ``causes.toml``, why each is slow and
what a person who knows that would change.  ``--count`` of them are drawn.  Each is tuned from
outside; the keywords that tune prints are pasted into it; then the script as it was, as tuned and
as changed by hand run in turn, measured by this file alone: samples/s after a warm-up, epochs'
ends included.  Target: 3.5 times as fast, where a change from outside can cure the cause and the
change by hand gains that much.  Causes that nothing from outside can cure are named.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomllib

from benchmarks.suites import arguments, dataset, finish
from iobench.core.clock import clock
from iobench.equations import stats
from iobench.run.script import waited

HERE = Path(__file__).with_suffix("")
TARGET = 3.5
SAMPLES = 4096
#: Runs a script under a loop that counts: its own file, so that a script's globals stay its own.
COUNTER = """
import json, os, runpy, sys, time

import iobench

script, folder, out = sys.argv[1:4]
warm_s, seconds = map(float, sys.argv[4:])
seen = {"samples": 0}


def watch(loader, results=""):
    for batch in loader:
        seen.setdefault("began", time.perf_counter())
        yield batch
        now = time.perf_counter()
        if "first" in seen:
            seen["samples"] += loader.batch_size
        elif now - seen["began"] > warm_s:
            seen["first"] = now
        if seen["samples"] and now - seen["first"] > seconds:
            with open(out, "w") as file:
                json.dump(seen["samples"] / (now - seen["first"]), file)
            os._exit(0)


iobench.watch = watch
sys.argv = [script, folder]
runpy.run_path(script, run_name="__main__")
"""


def causes() -> dict[str, dict[str, Any]]:
    """Return the scripts and what their writer wrote of them."""
    return tomllib.loads((HERE / "causes.toml").read_text())


def by_hand(text: str, changes: Sequence[Sequence[str]]) -> str:
    """Return a script with the changes of a person; raises ValueError for one that does not fit."""
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{old!r} is not in the script")
        text = text.replace(old, new)
    return text


def pasted(text: str, code: str) -> str:
    """Return a script with the keywords, and the threads, that tune's code has."""
    lines = [line for line in code.splitlines() if not line.startswith("#")]
    calls = [_call(line if line.endswith(")") else f"DataLoader({line})") for line in lines]
    words = {k.arg: k.value for call in calls for k in call.keywords}
    threads = [call.args[0] for call in calls if _name(call) == "set_num_threads"]
    tree = ast.parse(text)
    (main,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main")
    for call in [n for n in ast.walk(main) if isinstance(n, ast.Call)]:
        if _name(call) == "DataLoader":
            own = [k for k in call.keywords if k.arg not in words]
            call.keywords = [*own, *(ast.keyword(name, value) for name, value in words.items())]
        elif _name(call) == "set_num_threads" and threads:
            call.args = threads[:1]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _call(line: str) -> ast.Call:
    """Return a line as the call that it is; raises ValueError for another one."""
    found = ast.parse(line, mode="eval").body
    if not isinstance(found, ast.Call):
        raise ValueError(f"{line!r} is no call")
    return found


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def tuned(script: Path, pictures: Path, folder: Path, args: Any) -> dict[str, Any]:
    """Run `iobench tune --script`; return its answer."""
    command = shlex.join([sys.executable, str(script), str(pictures)])
    done = subprocess.run(
        [sys.executable, "-m", "iobench.cli", "tune", "--script", command, "--json", "--minutes",
         str(args.minutes), "--seconds", str(args.seconds), "--into", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.stdout.strip():
        raise RuntimeError(f"tune gave no answer:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rate(script: Path, pictures: Path, folder: Path, args: Any) -> float:
    """Return samples/s of a script, after a warm-up of the same length."""
    counter, out = folder / "counter.py", folder / "rate.json"
    counter.write_text(COUNTER)
    out.unlink(missing_ok=True)
    times = [str(args.loop / 2), str(args.loop)]
    command = [sys.executable, str(counter), str(script), str(pictures), str(out), *times]
    with open(folder / "words", "w+") as words:
        waited(command, os.environ, words, 60 + 20 * args.loop)
        words.seek(0)
        said = words.read()
    if not out.exists():
        raise RuntimeError(f"{script.name} measured nothing:\n{said[-2000:]}")
    return float(json.loads(out.read_text()))


def ratios(
    scripts: Mapping[str, Path], pictures: Path, folder: Path, args: Any
) -> dict[str, stats.Interval]:  # fmt: skip
    """Run the scripts in turn, ``--pairs`` times; return each one's rate over that of "old"."""
    rng = random.Random(len(scripts))
    found: dict[str, list[float]] = {name: [] for name in scripts}
    for _ in range(args.pairs):
        for name in rng.sample(sorted(scripts), len(scripts)):
            found[name].append(rate(scripts[name], pictures, folder, args))
    old = found.pop("old")
    return {
        name: stats.geometric_interval([new / was for new, was in zip(rates, old, strict=True)])
        for name, rates in found.items()
    }


def study(name: str, cause: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """Tune one script and measure it as it was, as tuned and as changed by hand."""
    began = clock()
    text = (HERE / f"{name}.py").read_text()
    with tempfile.TemporaryDirectory(prefix="iobench-strangers-") as work:
        folder = Path(work)
        made = dataset(args.data, "smoke", SAMPLES, [])
        pictures = folder / "pictures"
        shutil.copytree(Path(made.jpeg_root or Path(made.root) / "jpeg"), pictures)
        scripts = {"old": folder / "old.py", "by hand": folder / "hand.py"}
        scripts["old"].write_text(text)
        scripts["by hand"].write_text(by_hand(text, cause["hand"]))
        answer = tuned(scripts["old"], pictures, folder / "tune", args)
        spent = clock() - began
        if answer["code"]:
            scripts["tuned"] = folder / "new.py"
            scripts["tuned"].write_text(pasted(text, answer["code"]))
        found = ratios(scripts, pictures, folder, args)
    limits = {what: [r.value, r.low, r.high] for what, r in found.items()}
    tuned_ = limits.get("tuned", [1.0, 1.0, 1.0])
    outside = cause["outside"].partition(":")[0]
    wanted = outside == "yes" and limits["by hand"][0] >= TARGET
    passed = not wanted or tuned_[0] >= TARGET
    words = "; ".join(line for line in answer["code"].splitlines() if not line.startswith("#"))
    print(
        f"{name}: {cause['what']}\n"
        f"  tune: {answer['verdict']} in {spent:.0f} s: {words or 'nothing to paste'}\n"
        f"  tuned {_shown(tuned_)} times as fast; by hand {_shown(limits['by hand'])} (its writer "
        f"expected {cause['gain']})\n"
        f"  from outside: {cause['outside']}\n"
        f"  {('met' if passed else 'MISSED') if wanted else 'no target'}",
        flush=True,
    )
    return {"name": name, "passed": passed, "wanted": wanted, "verdict": answer["verdict"],
            "ratios": limits, "outside": cause["outside"], "code": answer["code"],
            "tune_s": spent, "wall_s": clock() - began}  # fmt: skip


def _shown(limits: Sequence[float]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*limits)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=6, help="scripts that are drawn")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn anew")
    parser.add_argument("--only", default="", help="names that contain this, instead of a draw")
    parser.add_argument("--minutes", type=float, default=8.0, help="of each search")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each loop of a search")
    parser.add_argument("--loop", type=float, default=10.0, help="seconds measured of each run")
    parser.add_argument("--pairs", type=int, default=6)
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(10**6)
    known = causes()
    drawn = random.Random(seed).sample(sorted(known), min(args.count, len(known)))
    drawn = [name for name in known if args.only in name] if args.only else drawn
    print(f"seed {seed}: {', '.join(drawn)}", flush=True)
    rows = [study(name, known[name], args) for name in drawn]
    for row in rows:
        if not row["outside"].startswith("yes"):
            print(f"not, or not wholly, to be cured from outside: {row['name']}: {row['outside']}")
    if not any(row["wanted"] for row in rows):
        print(f"none of these causes allows {TARGET} x from outside: nothing is shown, draw more")
    judged = [row["passed"] for row in rows if row["wanted"]]
    return finish(args, {"seed": seed, "runs": rows}, all(judged) if judged else None)


if __name__ == "__main__":
    sys.exit(main())
