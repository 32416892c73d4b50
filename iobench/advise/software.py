"""What the stacks and the launchers of this machine are: the doctor's lines about software."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import iobench
from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable, ImageError
from iobench.core.members import Installed, Stack
from iobench.host import probes
from iobench.host.fingerprint import version_of
from iobench.images import prefix
from iobench.run import command


@dataclasses.dataclass(frozen=True)
class Check:
    """One fact about this machine.  ``remedy`` says what to do where ``ok`` is False."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def stack(name: str) -> Check:
    """Look at a stack: the driver's own without importing it (that takes seconds), others whole."""
    title = f"stack {name}"
    known: Stack = registry.load("stacks", name)
    try:
        here = registry.installed(name)
    except BackendUnavailable as error:
        reason, remedy = _parted(str(error))
        end = "it runs in containers only" if known.image else "nothing of it can run"
        return Check(title, False, f"{reason}, so {end}", remedy or known.remedy)
    if here.probe:
        code, words = probes.ask(here.probe, env={**os.environ, **here.env})
        detail = f"{words}; your own build, the program alone; at {here.prefix}"
        return Check(title, not code, detail, known.remedy)
    found = _driver_libraries(known) if here.python == sys.executable else _asked(name, here)
    if found is None:
        return Check(title, False, f"{here.python} does not start", known.remedy)
    versions = ", ".join(f"{m} {v or '?'}" for m, v in found["versions"].items())
    where = f"; {'your own build' if here.own else 'at'} {here.prefix or here.python}"
    detail = f"Python {found['python']}, {versions}{where}"
    if broken := found["broken"]:
        lost = [f"{module} ({why}): no {_users(module)}" for module, why in broken.items()]
        return Check(title, False, f"{'; '.join(lost)}; {detail}", known.remedy)
    if here.facts and known.image and known.image.script and _is_stale(name, here.facts):
        remedy = f"it was made by another recipe than this iobench's: `make {name}` renews it"
        return Check(title, False, detail, remedy)
    if "+cpu" in found["versions"].get("torch", "") and Path("/dev/nvidiactl").exists():
        return Check(title, False, f"{detail}: cannot use the GPU", "install a CUDA build of torch")
    return Check(title, True, detail)


def _driver_libraries(stack: Stack) -> dict[str, Any]:
    """Return what :mod:`iobench.worker.self_check` would, of this Python, importing nothing."""
    broken = {m: "not installed" for m in stack.libraries if not registry.importable(m)}
    versions = {m: version_of(d) for m, d in stack.libraries.items() if m not in broken}
    return {"python": platform.python_version(), "versions": versions, "broken": broken}


def _asked(name: str, here: Installed) -> dict[str, Any] | None:
    """Return what the stack's own Python answers; None where it does not start."""
    code = str(Path(iobench.__file__).parent.parent)
    path = os.pathsep.join([code, *here.python_path])
    argv = [here.python, "-B", "-m", "iobench.worker.self_check", name, "--json", *here.modules]
    env = {**os.environ, **here.env, "PYTHONPATH": path}
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, check=False, timeout=120,
        cwd="/",  # Python looks for modules there first
    )  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return found


def _users(module: str) -> str:
    """Return the members that need a module, as "loader dali, format lmdb"."""
    users = [
        f"{axis[:-1]} {name}"
        for axis in ("loaders", "formats", "decoders", "trainers")
        for name in registry.names(axis)
        if module in registry.load(axis, name).requires
    ]
    return ", ".join(users) or "use of it"


def _is_stale(name: str, facts: Mapping[str, str]) -> bool:
    """Return whether a prefix differs from what would be made now; outside a clone nobody knows."""
    try:
        return facts.get("recipe") != prefix.wanted(name)
    except ImageError:
        return False


def member(title: str, reason: str, found: str) -> Check:
    """Return the line of a member that can run (``found``), or of why not, with the remedy."""
    fault, remedy = _parted(reason)
    return Check(title, not reason, fault or found, remedy)


def _parted(reason: str) -> tuple[str, str]:
    """Return fault and remedy of ``fault (what a program said: its words): remedy``."""
    fault, *remedy = re.split(r": (?![^(]*\))", reason, maxsplit=1)
    return fault, "".join(remedy)


def launchers() -> Iterator[Check]:
    """Yield one line a launcher of several ranks: here, or brought by a stack alone."""
    for name in registry.names("launchers"):
        if name == "local":
            continue
        reason = registry.unavailable("launchers", name)
        stacks = registry.load("launchers", name).stacks if reason else ()
        if brought := [s for s in stacks if _brings(s, name)]:
            detail = f"in the stack {', '.join(brought)}; cases of other stacks: {reason}"
            yield Check(f"launcher {name}", True, detail)
        else:
            yield member(f"launcher {name}", reason, "can run here")


def _brings(stack: str, launcher: str) -> bool:
    """Return whether a stack on this host has the program of a launcher."""
    try:
        command.check_launcher(Case(launcher=launcher), registry.installed(stack).env)
    except BackendUnavailable:
        return False
    return True
