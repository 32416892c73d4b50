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

SAMPLES, BROKEN = 26, 13  # not a whole number of batches; the sample that is no JPEG
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
    stack: str = ""
    checks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    absent: str = ""

    @property
    def failed(self) -> list[str]:
        """The checks that found something wrong, and those that a hang left out."""
        kept = ("n/a", "note")
        wrong = [name for name, text in self.checks.items() if text and not text.startswith(kept)]
        return wrong + [name for name in CHECKS if not self.absent and name not in self.checks]


def audit(folder: Path, loaders: Sequence[str], say: Say) -> Iterator[Audited]:
    """Ask every pipeline of these loaders that can run here; yield the answers.

    ``folder``: new, for the data.  Each loader is run in its own stack, with its defaults.
    """
    (folder / "audit.toml").write_text(_RECIPE)
    whole = make.make(str(folder / "audit.toml"), folder / "whole", samples=SAMPLES)
    damaged = _damaged(whole, folder / "damaged")
    readable = [registry.load("loaders", loader).formats for loader in loaders]
    forms = list(_forms(whole, damaged, readable))
    for loader in loaders:
        backend = registry.load("loaders", loader)
        for form in forms:
            if backend.formats is None or form in backend.formats:
                for decoder in _decoders(loader, form):
                    say(f"auditing {loader}:{form} {decoder if backend.decodes else ''}".rstrip())
                    yield _asked(folder, Subject(
                        loader, form, decoder, whole.root, damaged.root, BROKEN
                    ))  # fmt: skip


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
    whole: Dataset, damaged: Dataset, readable: Sequence[frozenset[str] | None]
) -> Iterator[str]:
    """Convert both datasets to every stored form that can be written here and read; yield it.

    ``readable``: the forms that each loader reads, None for any.
    """
    for name in registry.names("formats"):
        backend = registry.load("formats", name)
        if backend.fileless or registry.unavailable("formats", name):
            continue
        for content in sorted(backend.contents):
            form = name if content == "jpeg" else f"{name}-{content}"
            if not any(forms is None or form in forms for forms in readable):
                continue
            if content != "jpeg":
                convert(whole, name, content=content, options={"side": _SIDE})
            elif name != "jpeg":
                convert(whole, name)
                convert(damaged, name)
            yield form


def _decoders(loader: str, form: str) -> list[str]:
    """Return the usual decoder, and the others over JPEG files where the loader takes them."""
    others = [n for n in registry.names("decoders") if n != Case.decoder]
    if not registry.load("loaders", loader).decodes or form != "jpeg":
        others = []
    return [Case.decoder, *(n for n in others if not registry.unavailable("decoders", n))]


def _asked(folder: Path, subject: Subject) -> Audited:
    stack = subject.backend.stack or registry.DEFAULT_STACK
    decoder = subject.decoder if subject.backend.decodes and "-" not in subject.form else ""
    name = f"{subject.loader}:{subject.form}"
    try:
        installed = registry.installed(stack)
        if stack == registry.DEFAULT_STACK:
            registry.require("loaders", subject.loader)
    except BackendUnavailable as error:
        return Audited(name, decoder, stack, absent=str(error))
    path = folder / "subject.json"
    path.write_text(json.dumps(dataclasses.asdict(subject)))
    code = str(Path(iobench.__file__).parent.parent)
    argv = [installed.python, "-B", "-m", "iobench.worker.audit", str(path)]
    paths = [code, *installed.python_path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TMPDIR": str(folder)}
    env = {**os.environ, **installed.env, **variables}
    return dataclasses.replace(_answer(argv, env), pipeline=name, decoder=decoder, stack=stack)


def _answer(argv: Sequence[str], env: Mapping[str, str]) -> Audited:
    """Run the checks; end whatever they leave behind, a hanging library's processes too."""
    limit_s = LIMIT_S * (len(CHECKS) + 1)
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
        found: dict[str, dict[str, str]] = {"versions": {}, "checks": {}}
        for line in said.read().splitlines():
            for key, values in json.loads(line).items():
                found[key].update(values)
        at = next((name for name in CHECKS if name not in found["checks"]), "")
        if process.returncode and at:  # it ended in the first check without an answer
            reason = " ".join(told.read().split())[-300:]
            ended = "note: ends its process" if at == "errors" else f"its process ended: {reason}"
            found["checks"][at] = ended
        return Audited("", checks=found["checks"], versions=found["versions"])
