"""Images of the user's own: one look inside each before a suite, and what it cannot run left out.

The worker is put in as it is for trials: what starts here starts there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from iobench.core import registry
from iobench.core.cases import Case, Dataset
from iobench.core.errors import BackendUnavailable, ImageError, SpecError
from iobench.core.inside import MOUNT_POINTS
from iobench.core.own_images import is_own
from iobench.core.protocols import ImageUse, Say
from iobench.images import disk, own
from iobench.plan.resolve import fit
from iobench.run import command
from iobench.spec.load import expand, extra_cases
from iobench.spec.schema import Filter, Spec

#: The oldest Python that the worker's side runs on.
OLDEST = (3, 9)
_LIMIT_S = 300.0
#: Any Python can read this; the package only a newer one.
_LOOK = f"""
import sys
if sys.version_info < {OLDEST}:
    sys.exit("its python3 is %d.%d, and the worker needs {OLDEST[0]}.{OLDEST[1]} or newer"
             % sys.version_info[:2])
from iobench.worker import self_check
self_check.main(sys.argv[1:])
"""


def fitted(
    spec: Spec, missing: Mapping[str, str], folder: Path, say: Say, *, making: bool = True
) -> tuple[Spec, list[str]]:
    """Leave out the cases of the matrix that their own image cannot run; return notes on it.

    ``missing``: runtimes that cannot run here.  ``making``: images are pulled and looked into.
    Raises ImageError for an image that is not there or that no runtime can run, and for a case that
    the spec names alone.
    """
    images = dict.fromkeys(case.image for case in expand(spec) if _in_own(case))
    for image in images:
        own.check(image)
    cases = expand(fit(spec, missing)[0])
    users = [case for case in cases if _in_own(case)]
    why = {case.label: reason for case, reason in _refused(spec, users, folder, say, making)}
    for label in extra_cases(spec, cases):
        if label in why:
            raise ImageError(f"case {label}: {why[label]}")
    notes, refused = [], [case for case in users if case.label in why]
    for reason in dict.fromkeys(why.values()):
        names = dict.fromkeys(case.pipeline for case in refused if why[case.label] == reason)
        notes.append(f"{', '.join(names)}: left out: {reason}")
    for image in images:
        arms = dict.fromkeys(c.runtime for c in users if c.image == image and c not in refused)
        if not arms:
            absent = [f"runtime {name}: {reason}" for name, reason in missing.items()]
            reasons = "; ".join(dict.fromkeys([*why.values(), *absent]))
            raise ImageError(f"nothing can run in the image {image}: {reasons}")
        apart = "unpacked shows that part alone" if "unpacked" in arms else "no arm shows it alone"
        notes.append(
            f"the user's own image {image} runs in {', '.join(arms)}: its software is part of any "
            f"difference from bare ({apart})"
        )
    keys = ("pipeline", "runtime", "image", "trainer")
    left_out: list[Filter] = [{key: [getattr(case, key)] for key in keys} for case in refused]
    return spec.model_copy(update={"exclude": (*spec.exclude, *left_out)}), notes


def _in_own(case: Case) -> bool:
    return is_own(case.image) and bool(registry.form_of(case))


def _refused(
    spec: Spec, users: Sequence[Case], folder: Path, say: Say, making: bool
) -> Iterator[tuple[Case, str]]:
    """Yield the cases that cannot run in their own image, and why; each image is asked once."""
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in users:
        key = case.runtime, case.image, repr(case.runtime_options)
        groups.setdefault(key, []).append(case)
    for (runtime, image, _), cases in groups.items():
        wanted = {case.label: modules_of(case, digest=spec.ladder.digest) for case in cases}
        every = sorted({module for modules in wanted.values() for module in modules})
        try:
            own.takes(image, registry.form_of(cases[0]))
            broken = look(cases[0], every, folder, say) if making else {}
        except (ImageError, BackendUnavailable, SpecError) as error:
            yield from ((case, f"runtime {runtime}: {error}") for case in cases)
            continue
        for case in cases:
            lacking = [module for module in wanted[case.label] if module in broken]
            if lacking:
                yield case, f"runtime {runtime}: {_lacks(case, lacking, broken)}"


def modules_of(case: Case, *, digest: bool) -> list[str]:
    """Return what an image must have to run a case; ``digest``: its samples are digested too."""
    members = {**registry.loading(case), "trainers": case.trainer}
    named = [m for axis, name in members.items() for m in registry.load(axis, name).requires]
    return list(dict.fromkeys(["numpy", *named, *(["blake3"] if digest else [])]))


def _lacks(case: Case, modules: Sequence[str], broken: Mapping[str, str]) -> str:
    known, brought = registry.libraries(
        registry.stack_of(case), **registry.loading(case), trainers=case.trainer
    )
    packages = [{**known, **brought}.get(module, module) for module in modules]
    return (
        f"image {case.image} lacks {', '.join(packages)} ({broken[modules[0]]}): add them to the "
        f"image by its own Python, `python3 -m pip install {' '.join(packages)}`"
    )


def look(case: Case, modules: Sequence[str], folder: Path, say: Say) -> Mapping[str, str]:
    """Start the Python of a case's own image as a trial does; return module -> why it is missing.

    Raises ImageError where the image cannot be had, or has no Python of 3.9 or newer that starts.
    """
    alone = dataclasses.replace(case, launcher="local", launcher_options={}, world_size=1)
    say(f"{case.runtime}: looking into the image {case.image}")
    images = command.images_for([alone], folder, say)
    with tempfile.TemporaryDirectory(prefix="iobench-look-") as work:
        words = ["-c", _LOOK, registry.stack_of(case), "--json", *modules]
        name = f"iobench-look-{os.getpid()}"
        nothing = Dataset(work, "", 0, 0, 0, 0, "", "")
        started = command.start(alone, nothing, Path(work), images, name=name, words=words)
        what = f"starting Python in {case.image}"
        try:
            text = disk.call(started.argv, what, env=started.variables, limit_s=_LIMIT_S)
            broken: Mapping[str, str] = json.loads(text.splitlines()[-1])["broken"]
        except (IndexError, KeyError, ValueError) as error:
            raise ImageError(f"{what} gave no answer, but {text[-200:]!r}") from error
        except ImageError as error:
            raise ImageError(f"{error}{_remedy(case, images)}") from None
        finally:
            started.runtime.stop(name)
    return broken


def _remedy(case: Case, images: Mapping[str, ImageUse]) -> str:
    """Return what a folder lacks where ch-run starts it: the other runtimes make mount points."""
    root = images[case.image].forms.get("rootfs", "")
    missing = [root + place for place in MOUNT_POINTS if not os.path.isdir(root + place)]
    if case.runtime != "charliecloud" or not missing:
        return ""
    return f": ch-run needs mount points in the folder: `mkdir -p {' '.join(missing)}`"
