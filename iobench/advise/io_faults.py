"""What a container will do to I/O without a word: the facts of this machine, and the warnings."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from iobench.advise.case_facts import CaseFinding, Facts
from iobench.core import registry
from iobench.core.cases import Case
from iobench.host import container_io, engines, filesystems

#: Filesystem members whose files are in memory.
IN_MEMORY = ("tmpfs",)
#: Distribution that reads by GPUDirect Storage.
KVIKIO = "kvikio"


def image_of(case: Case, images: Path) -> Path | None:
    """Return the image's folder or file, of a runtime that takes one and where it is there."""
    endings = {"rootfs": ("",), "sif": (".sif", "")}.get(registry.form_of(case), ())
    found = (Path(images, f"{case.image}{ending}") for ending in endings)
    return next((path for path in found if path.exists()), None)


def on(path: Path | None) -> tuple[str, str]:
    """Return (filesystem member, path); ("", "") for no path."""
    return (filesystems.filesystem_for(path)[0], str(path)) if path else ("", "")


def direct() -> str:
    """Return what could read by GPUDirect Storage here; "" for nothing."""
    if container_io.NVIDIA_FS.exists():
        return "nvidia-fs"
    return KVIKIO if importlib.util.find_spec(KVIKIO) else ""


def own_users(case: Case, uid: int) -> bool:
    """Return whether the runtime makes a user namespace (apptainer: if it is not setuid)."""
    if case.runtime == "docker":
        return engines.docker_maps() == "rootless"
    return case.runtime == "charliecloud" or (case.runtime in ("podman", "apptainer") and uid != 0)


def udev(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    """Yield that GPUDirect Storage does not work inside, where it could outside."""
    if facts.direct and facts.udev and case.uses_gpu:
        yield CaseFinding(
            "/run/udev",
            f"a container is not shown it, and GPUDirect Storage ({facts.direct} is here) looks up "
            "its devices there: cuFile falls back to POSIX reads through host memory",
            "do not take such a rate for GPUDirect's; a job of your own binds /run/udev read-only "
            "(docker --volume, apptainer --bind)",
        )


def identity(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    """Yield that Lustre's servers see another user than the container does."""
    if facts.own_users and facts.fstype == "lustre":
        unless = ", unless it is installed setuid" if case.runtime == "apptainer" else ""
        yield CaseFinding(
            "Lustre identity",
            f"{case.runtime} makes a user namespace{unless}, and Lustre's servers look up groups "
            "by the uid outside of it (identity_upcall): files that only a supplementary group "
            "may read can be refused, and owners outside of the map show as nobody",
            "chmod -R a+rX on the dataset, or measure `metadata` and `files` bare too",
        )


def far_store(facts: Facts) -> Iterator[CaseFinding]:
    """Yield that the engine's images and upper layers are on other machines."""
    filesystem, folder = facts.store
    if filesystem not in engines.OF_THIS_MACHINE:
        yield CaseFinding(
            "image store",
            f"images and upper layers are in {folder}, on {filesystem}: files of the image are "
            "opened and read from its servers, beside the data",
            "move the store to a local disk (docker: data-root; podman: graphroot in storage.conf)",
        )


def in_memory(facts: Facts) -> Iterator[CaseFinding]:
    """Yield that the image takes memory."""
    for filesystem, folder in (facts.store, facts.image):
        if filesystem in IN_MEMORY:
            yield CaseFinding(
                "image in memory",
                f"the image is in {folder}, on {filesystem}, where {facts.memory_bytes >> 20} MiB "
                "are used: so much memory is not left for the page cache",
                "keep images on a disk (--images), or give the other arms as much less memory",
            )
