"""How a worker's command, paths and environment look from inside its runtime.

An isolated runtime shows the dataset, the work folder and this package at fixed places; the image's
own Python runs there.  Paths that such a worker reports are translated to host paths.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import iobench
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Extent, Placement, Scalar
from iobench.core.channel import INVITATION
from iobench.core.errors import BackendUnavailable, ImageError
from iobench.core.inside import (
    CODE_INSIDE,
    DATA_INSIDE,
    HELD,
    JPEG_INSIDE,
    OWN_PATH,
    PATH_INSIDE,
    PLUGINS_INSIDE,
    PREFIX_INSIDE,
    PYTHON_INSIDE,
    WORK_INSIDE,
)
from iobench.core.own_images import is_own
from iobench.core.protocols import ImageUse, Mount, Ranks, Runtime, Say, Start
from iobench.core.registry import form_of, runtime_of, stack_of
from iobench.host.fingerprint import steering
from iobench.run import nodes
from iobench.worker import remote_loader

#: PYTHONSAFEPATH: a numpy.py in the user's working folder is not what is meant (Python 3.11).
_COMMON = {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
#: These name files of the host, which no container has.
_HOST_ONLY = ("LD_PRELOAD", "LD_LIBRARY_PATH")
#: Nothing of the user's home is there, and no cache may need one.
_INSIDE = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "USER": "iobench",
    "LOGNAME": "iobench",
    "LANG": "C.UTF-8",
    "PATH": PATH_INSIDE,
    "PYTHONPATH": CODE_INSIDE,
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
#: In an image of the user's own its PATH finds the Python, and its PYTHONPATH stays.
_OWN_PYTHON = f'PYTHONPATH={CODE_INSIDE}${{PYTHONPATH:+:$PYTHONPATH}} exec python3 "$@"'


@dataclasses.dataclass(frozen=True)
class Started:
    """A worker as its runtime is asked to start it.

    ``dataset``: as the worker sees it.  ``name``: unique on this machine.  ``variables``: what the
    runtime's own process gets in addition to the driver's environment.
    """

    argv: Sequence[str]
    variables: Mapping[str, str]
    dataset: Dataset
    name: str
    runtime: Any
    #: The launcher puts each rank into a process group of its own.
    ranks_apart: bool = False
    #: (path inside, path outside) of every folder shown; () where paths are the host's.
    shown: Sequence[tuple[str, str]] = ()

    def outside(self, extent: Extent) -> Extent:
        """Return an extent that the worker wrote with the host's path."""
        for inside, host in self.shown:
            if extent.path == inside or extent.path.startswith(f"{inside}/"):
                return extent._replace(path=host + extent.path[len(inside) :])
        return extent


def images_for(
    cases: Iterable[Case], folder: Path, say: Say = lambda line: None
) -> dict[str, ImageUse]:
    """Return the images that the cases' runtimes need, each in every form that is asked for.

    Raises ImageError for one that is missing, stale, half-built or not made in a form, or that is
    the user's own and cannot be brought into it.
    """
    from iobench.images import catalogue, forms, own

    used: dict[str, ImageUse] = {}
    for case in cases:
        form = form_of(case)
        if not form or form in getattr(used.get(case.image), "forms", {}):
            continue
        if is_own(case.image):
            digest, source = own.use(case.image, form, folder, say)
            known = used.get(case.image, ImageUse(case.image, "", {}))
            digests = {**known.digests, form: digest}
            every = ", ".join(dict.fromkeys(digests.values()))
            made = {**known.forms, form: source}
            used[case.image] = ImageUse(case.image, every, made, digests)
            continue
        found = catalogue.find(case.image, folder)
        known = used.get(case.image, ImageUse(found.name, found.digest, {}))
        made = {**known.forms, form: forms.in_form(found, form)}
        used[case.image] = dataclasses.replace(known, forms=made)
    return used


def start(
    case: Case,
    dataset: Dataset,
    work: Path,
    images: Mapping[str, ImageUse],
    *,
    name: str,
    on_host: bool = False,
    place: Placement | None = None,
    world_size: int = 1,
    hosts: Sequence[str] = (),
    words: Sequence[str] = (),
) -> Started:
    """Return how the case's worker is started on ``work`` (its folder, the invitation in it).

    ``on_host``: without the case's runtime and launcher, for what only looks at files.  ``place``:
    where the data were put, if anywhere.  ``world_size``: how many ranks are started.  ``hosts``:
    the nodes that they are spread over, started from outside of their containers; (): this one.
    ``words``: arguments of the interpreter, if not those that start a worker.  Raises
    BackendUnavailable where the runtime cannot run here or the case's stack or launcher is not on
    this host, ImageError where its image is not given.
    """
    case = Case() if on_host else case
    backend = registry.require("runtimes", case.runtime)
    runtime = backend.make(**case.runtime_options)
    launching = registry.load("launchers", case.launcher)
    form = form_of(case)
    image = (place and place.image) or (image_of(case, form, images) if form else "")
    mounted: tuple[Mount, ...] = ()
    if backend.isolated:
        python, env = _in_image(case, form)
        mounted = mounts(dataset, work, place)
        seen, folder = inside(dataset), WORK_INSIDE
    else:
        seen, folder = dataset, str(work)
        python, env = _on_host(case, image, work)
    usual = launching.across if hosts else launching.variables
    wanted = {n: v for n, v in usual.items() if n not in os.environ}
    env = {**_COMMON, **wanted, HELD: name, **env}
    asked = Start(image=image, name=name, gpus=case.uses_gpu, mounts=mounted, env=env)
    if backend.limits is not None:
        asked = dataclasses.replace(asked, cpus=case.cpus, memory_bytes=case.memory_bytes)
    command = [*python, *(words or ("-m", "iobench.worker", f"{folder}/{INVITATION}"))]
    argv = _launched(case, runtime, command, asked, Ranks(world_size, hosts, python=python))
    inside_all = registry.scope_of(case) == "node" and not hosts  # nothing of it is out here
    shown = [(m.inside, str(m.host)) for m in mounted if m.kind == "bind"]
    if place and place.image:
        shown.append((DATA_INSIDE, place.files))
    return Started(
        argv=argv,
        variables=({} if inside_all else wanted) if backend.isolated else asked.env,
        dataset=seen,
        name=name,
        runtime=runtime,
        shown=shown,
        ranks_apart=launching.inside or bool(hosts),
    )


def _launched(
    case: Case, runtime: Runtime, command: Sequence[str], asked: Start, ranks: Ranks
) -> list[str]:
    """Return the command that starts the ranks: the launcher in their container, or around it.

    ``ranks.python``: where the ranks run, for a launcher that runs there too.
    """
    launching, scope = registry.load("launchers", case.launcher), registry.scope_of(case)
    launcher: Any = launching.make(**case.launcher_options)
    if scope == "node" and not ranks.hosts:
        return runtime.argv(launcher.argv(command, ranks), asked)
    check_launcher(case, asked.env)
    if scope == "node":
        here = dataclasses.replace(asked, passed=registry.load("launchers", launcher.by).passed)
        ranks = dataclasses.replace(
            ranks, forward=nodes.forwarded(), contained=lambda inner: runtime.argv(inner, here)
        )
        return list(launcher.argv(command, ranks))
    ranks = Ranks(ranks.count, ranks.hosts, nodes.forwarded() if ranks.hosts else ())
    if not scope and launching.inside and not ranks.hosts:  # it may be the stack's own
        return runtime.argv(launcher.argv(command, ranks), asked)
    asked = dataclasses.replace(asked, passed=launching.passed, of_one_rank=ranks.count > 1)
    return list(launcher.argv(runtime.argv(command, asked), ranks))


def work_folder(work: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return what a rank on another node needs of its work folder: (texts, links) by name."""
    code = work / "code" / "iobench"
    links = {"code/iobench": os.readlink(code)} if code.is_symlink() else {}
    return {INVITATION: (work / INVITATION).read_text()}, links


def check_launcher(case: Case, env: Mapping[str, str]) -> None:
    """Raise BackendUnavailable where a case's launcher is not on this host, nor in its stack.

    ``env``: of the stack's processes; its own programs come first on their PATH.
    """
    backend = registry.load("launchers", case.launcher)
    launcher = backend.make(**case.launcher_options)
    program = launcher.argv((), Ranks(case.world_size))[:1] if backend.inside else []
    if program and "PATH" in env and shutil.which(program[0], path=env["PATH"]):
        return
    registry.require("launchers", case.launcher)
    if reason := launcher.available():
        raise BackendUnavailable(f"launcher {case.launcher!r} cannot run here: {reason}")


def _in_image(case: Case, form: str) -> tuple[list[str], dict[str, str]]:
    """Return the words that begin a worker inside an image, and what its environment gets."""
    if not is_own(case.image):
        stack = registry.load("stacks", case.image).environment(PREFIX_INSIDE)
        return [PYTHON_INSIDE], {**_INSIDE, **stack, **_inherited()}
    env = {n: v for n, v in _INSIDE.items() if n not in ("PATH", "PYTHONPATH")}
    path = {"PATH": OWN_PATH} if form == "rootfs" else {}
    return ["/bin/sh", "-c", _OWN_PYTHON, "python3"], {**env, **path, **_inherited()}


def _on_host(case: Case, image: str, work: Path) -> tuple[list[str], dict[str, str]]:
    """Return :func:`_stack_on_host`, with what was relative to where the user is made absolute."""
    python, env = _stack_on_host(case, image, work)
    return python, {**_absolute(os.environ), **env}


def _stack_on_host(case: Case, image: str, work: Path) -> tuple[list[str], dict[str, str]]:
    """Return the words that begin a worker without a container, and what its environment gets.

    ``image``: the unpacked folder that it runs from; "": the case's stack on this host.
    """
    if image and is_own(case.image):
        from iobench.images import own

        alone = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return [own.python_in(image)], {**alone, "PYTHONPATH": str(_package_alone(work))}
    if image:
        root = image.rstrip("/")
        stack = registry.load("stacks", case.image)
        env = stack.prefix_environment(root + PREFIX_INSIDE, os.environ)
        return [root + PYTHON_INSIDE], {**env, "PYTHONPATH": str(_package_alone(work))}
    here, env = registry.installed(stack_of(case)), {}
    if here.python != sys.executable:
        path = [str(_package_alone(work)), *here.python_path]
        env = {**here.env, "PYTHONPATH": os.pathsep.join(path)}
    home = registry.load("loaders", case.loader).stack
    if home in ("", stack_of(case)):
        return [here.python], env
    there = registry.installed(home)  # the loader is brought in from there
    restored = {name: os.environ.get(name) for name in env}
    if there.python != sys.executable:
        restored.update({**there.env, "PYTHONPATH": os.pathsep.join(there.python_path) or None})
    far = {remote_loader.PYTHON: there.python, remote_loader.RESTORE: json.dumps(restored)}
    return [here.python], {**env, **far}


def record_of(case: Case, images: Mapping[str, ImageUse]) -> dict[str, Scalar]:
    """Return what a record says of the case's runtime: image, form and :meth:`identify`."""
    runtime = runtime_of(case)
    if not (form := form_of(case)):
        return dict(runtime.identify(""))
    image, used = image_of(case, form, images), images[case.image]
    facts = {"image": used.name, "digest": used.digests.get(form, used.digest), "form": form}
    if case.world_size > 1 and (scope := registry.scope_of(case)):
        facts["scope"] = scope
    return {**facts, **runtime.identify(image)}


def image_of(case: Case, form: str, images: Mapping[str, ImageUse]) -> str:
    """Return the case's image in a form.  Raises ImageError when it was not given."""
    used = images.get(case.image)
    if used is None or form not in used.forms:
        raise ImageError(
            f"runtime {case.runtime!r} needs the image {case.image!r} as {form}: run `make images`"
        )
    return used.forms[form]


def mounts(dataset: Dataset, work: Path, place: Placement | None = None) -> tuple[Mount, ...]:
    """Return what an isolated runtime shows; only the work folder can be written."""
    shown = [
        *_data_mounts(dataset, place),
        Mount(work, WORK_INSIDE, writable=True),
        Mount(Path(iobench.__file__).parent, f"{CODE_INSIDE}/iobench"),
    ]
    if dataset.in_place:
        shown.append(Mount(Path(dataset.jpeg_root), JPEG_INSIDE))
    if plugins := os.environ.get("IOBENCH_PLUGINS"):
        shown.append(Mount(Path(plugins).absolute(), PLUGINS_INSIDE))
    return tuple(shown)


def _data_mounts(dataset: Dataset, place: Placement | None) -> list[Mount]:
    if place and place.image:
        return []  # they are in it
    if place and place.inside:
        at = "/" if place.mount == "overlay" else DATA_INSIDE
        return [Mount(Path(place.files), at, kind=place.mount)]
    return [Mount(Path(dataset.root), DATA_INSIDE)]


def inside(dataset: Dataset) -> Dataset:
    """Return the dataset as an isolated runtime shows it."""
    jpeg = JPEG_INSIDE if dataset.in_place else f"{DATA_INSIDE}/jpeg"
    return dataclasses.replace(dataset, root=DATA_INSIDE, jpeg_root=jpeg)


def _inherited() -> dict[str, str]:
    """Return thread counts and the like, and plug-ins: a bare worker inherits them as they are."""
    env = {n: v for n, v in steering(os.environ).items() if n not in (*_COMMON, *_HOST_ONLY)}
    return {**env, "IOBENCH_PLUGINS": PLUGINS_INSIDE} if os.environ.get("IOBENCH_PLUGINS") else env


def _absolute(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose paths may be relative to where the user is, made absolute."""
    paths = {n: variables.get(n, "").split(os.pathsep) for n in ("PYTHONPATH", "IOBENCH_PLUGINS")}
    found = {n: os.pathsep.join(os.path.abspath(p) for p in ps if p) for n, ps in paths.items()}
    return {name: value for name, value in found.items() if value}


def _package_alone(work: Path) -> Path:
    """Return a folder that holds this package and nothing that lies beside it on the host."""
    folder = work / "code"
    folder.mkdir(exist_ok=True)
    link = folder / "iobench"
    if not link.exists():
        link.symlink_to(Path(iobench.__file__).parent)
    return folder
