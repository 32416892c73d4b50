"""Whether every loader reads every sample once: each pipeline is asked, in a process of its own.

The checks are :mod:`iobench.worker.audit`; here is what they are run on, and in which Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import iobench
from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset
from iobench.core.errors import BackendUnavailable
from iobench.core.protocols import Say
from iobench.data import make
from iobench.data.convert import convert
from iobench.data.index import Row as Sample
from iobench.data.index import declare
from iobench.worker.audit import CHECKS, LIMIT_S, Subject
from iobench.worker.library_defaults import DEFAULTS, Default

SAMPLES, BROKEN = 26, 13  # not a whole number of batches; the sample that is no JPEG
#: Options of formats of which the usual ones would put so few samples into one shard.
_LAYOUTS = {"tar": {"shard_bytes": 300_000}}
_SIDE = 224
_RECIPE = f"""
summary = "pictures of the size of a crop, which has one window then"
samples = {SAMPLES}
seed = 1
classes = 3
mean_bytes = 80_000
sd_bytes = 2_000
min_bytes = 70_000
max_bytes = 90_000
width = {_SIDE}
height = {_SIDE}
min_side = {_SIDE}
max_side = {_SIDE}
fixed = true
subsampling = "444"
roughness = 200
"""


@dataclasses.dataclass(frozen=True)
class Audited:
    """What one pipeline answered; ``absent``: why it could not be asked."""

    pipeline: str
    decoder: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stack: str = ""
    checks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    absent: str = ""

    @property
    def name(self) -> str:
        """The pipeline, the decoder that it was given, and the options that are not defaults."""
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in self.options.items()}
        options = (f"{key}={text}" for key, text in texts.items())
        return " ".join(filter(None, [self.pipeline, self.decoder, *options]))

    @property
    def failed(self) -> list[str]:
        """The checks that found something wrong, and those that a hang left out."""
        kept = ("n/a", "note")
        wrong = [name for name, text in self.checks.items() if text and not text.startswith(kept)]
        return wrong + [name for name in CHECKS if not self.absent and name not in self.checks]


def audit(
    folder: Path, loaders: Sequence[str], say: Say, *, only: Sequence[str] = ()
) -> Iterator[Audited]:
    """Ask every pipeline of these loaders that can run here; yield the answers.

    ``folder``: new, for the data.  ``only``: forms, such as ``lmdb-raw``; none: all.  Each loader
    is run in its own stack, with its defaults, and over one form with the other options that it
    names (``also_audited``).
    """
    whole = _whole(folder)
    damaged = _damaged(whole, folder / "damaged")
    readable = [registry.load("loaders", loader).formats for loader in loaders]
    forms = list(_forms(whole, damaged, readable, only))
    for loader in loaders:
        backend = registry.load("loaders", loader)
        for form in forms:
            if backend.formats is None or form in backend.formats:
                layout = registry.layout_of(form, _LAYOUTS[form]) if form in _LAYOUTS else ""
                for decoder, options in _settings(loader, form):
                    subject = Subject(
                        loader, form, decoder, whole.root, damaged.root, BROKEN, layout, options
                    )
                    asked = _as_asked(subject)
                    say(f"auditing {asked.name}")
                    yield _asked(folder, subject, asked)


@dataclasses.dataclass(frozen=True)
class ShownDefault:
    """What a real run of a library's default showed; ``absent``: why it could not run here."""

    default: str
    instead: str
    shown: str = ""
    version: str = ""
    absent: str = ""


def library_defaults(
    folder: Path, loaders: Sequence[str], say: Say, *, only: str = ""
) -> Iterator[ShownDefault]:
    """Run the defaults of these loaders' libraries on the samples of :func:`audit`.

    ``only``: the one of this name.
    """
    files = _whole(folder).jpeg_root
    for default in DEFAULTS.values():
        if default.loader in loaders and only in ("", default.name):
            say(f"running {default.name}")
            yield _shown(folder, files, default)


def _shown(folder: Path, files: str, default: Default) -> ShownDefault:
    found = ShownDefault(default.name, default.instead)
    stack = registry.load("loaders", default.loader).stack or registry.DEFAULT_STACK
    try:
        registry.require("loaders", default.loader)
        argv, env = _python(folder, stack, "iobench.worker.library_defaults")
    except BackendUnavailable as error:
        return dataclasses.replace(found, absent=str(error))
    ended, said, told = _run([*argv, default.name, files], env, LIMIT_S)
    if ended:
        return dataclasses.replace(found, shown=f"its process ended: {_tail(told)}")
    return dataclasses.replace(found, **json.loads(said.splitlines()[-1]))


def _whole(folder: Path) -> Dataset:
    """Return the dataset of all checks; it is made once."""
    (folder / "audit.toml").write_text(_RECIPE)
    return make.make(str(folder / "audit.toml"), folder / "whole", samples=SAMPLES)


def _damaged(whole: Dataset, root: Path) -> Dataset:
    """Return a copy of the JPEG files, of which one holds no JPEG."""
    index = datasets.load_index(whole)
    rows = []
    for i, (key, label, name) in enumerate(zip(index.keys, index.labels, index.files, strict=True)):
        data = Path(whole.jpeg_root, name).read_bytes()
        data = bytes(len(data)) if i == BROKEN else data
        path = root / "jpeg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        rows.append(Sample(key, int(label), len(data), datasets.sample_digest(data), name))
    return declare(root, rows, name="damaged", seed=1, source="audit", jpeg_root=str(root / "jpeg"))


def _forms(
    whole: Dataset,
    damaged: Dataset,
    readable: Sequence[frozenset[str] | None],
    only: Sequence[str],
) -> Iterator[str]:
    """Convert both datasets to every stored form that can be written here and read; yield it.

    ``readable``: the forms that each loader reads, None for any.  ``only``: these; none: all.
    """
    for name in registry.names("formats"):
        backend = registry.load("formats", name)
        if backend.fileless or registry.unavailable("formats", name):
            continue
        for form in backend.stored_forms(name):
            content = form.partition("-")[2]
            wanted = not only or form in only
            if not wanted or not any(forms is None or form in forms for forms in readable):
                continue
            if content:
                convert(whole, name, content=content, options={"side": _SIDE})
            elif name != "jpeg":
                for each in (whole, damaged):
                    convert(each, name, options=_LAYOUTS.get(name))
            yield form


def _settings(loader: str, form: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (decoder, options): the usual ones, and over one form the loader's others."""
    backend = registry.load("loaders", loader)
    found: list[tuple[str, Mapping[str, Any]]] = [(Case.decoder, {})]
    if form == _plainest(backend.formats):
        others = [n for n in registry.names("decoders") if n != Case.decoder and backend.decodes]
        found += [(name, {}) for name in others if not registry.unavailable("decoders", name)]
        found += [(Case.decoder, options) for options in backend.also_audited]
    return found


def _plainest(forms: frozenset[str] | None) -> str:
    """Return the JPEG files of what a loader reads, or another form."""
    return "jpeg" if forms is None or "jpeg" in forms else min(forms)


def _as_asked(subject: Subject) -> Audited:
    """Return who is asked, without an answer."""
    takes = subject.backend.decodes and "-" not in subject.form
    return Audited(
        f"{subject.loader}:{subject.form}",
        subject.decoder if takes else "",
        subject.options,
        subject.backend.stack or registry.DEFAULT_STACK,
    )


def _asked(folder: Path, subject: Subject, asked: Audited) -> Audited:
    try:
        argv, env = _python(folder, asked.stack, "iobench.worker.audit")
        if asked.stack == registry.DEFAULT_STACK:
            registry.require("loaders", subject.loader)
    except BackendUnavailable as error:
        return dataclasses.replace(asked, absent=str(error))
    path = folder / "subject.json"
    path.write_text(json.dumps(dataclasses.asdict(subject)))
    checks, versions = _answer([*argv, str(path)], env)
    return dataclasses.replace(asked, checks=checks, versions=versions)


def _python(folder: Path, stack: str, module: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and environment that run a module in a stack's Python.

    Raises BackendUnavailable where the stack is not installed.
    """
    installed = registry.installed(stack)
    code = str(Path(iobench.__file__).parent.parent)
    paths = [code, *installed.python_path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TMPDIR": str(folder)}
    env = {**os.environ, **installed.env, **variables}
    return [installed.python, "-B", "-m", module], env


def _answer(
    argv: Sequence[str], env: Mapping[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Run the checks; return what each answered, and the versions of the libraries."""
    ended, said, told = _run(argv, env, LIMIT_S * (len(CHECKS) + 1))
    found: dict[str, dict[str, str]] = {"versions": {}, "checks": {}}
    for line in said.splitlines():
        for key, values in json.loads(line).items():
            found[key].update(values)
    at = next((name for name in CHECKS if name not in found["checks"]), "")
    if ended and at:  # it ended in the first check without an answer
        words = "note: ends its process" if at == "errors" else f"its process ended: {_tail(told)}"
        found["checks"][at] = words
    return found["checks"], found["versions"]


def _tail(text: str) -> str:
    return " ".join(text.split())[-300:]


def _run(argv: Sequence[str], env: Mapping[str, str], limit_s: float) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a program.

    What it leaves behind is ended, a hanging library's processes too.
    """
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(argv, env=env, stdout=said, stderr=told, start_new_session=True)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):  # what it answered counts
                process.wait(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        told.seek(0)
        return process.returncode, said.read(), told.read()
