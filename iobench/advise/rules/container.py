"""Causes that only a container, a batch job's limits or a control group brings."""

from __future__ import annotations

from collections.abc import Iterator

from iobench.advise.findings import Diagnosis, Rule, Scene
from iobench.analysis.case_results import CaseResult, CommunicationResult
from iobench.equations.stats import SLOWER
from iobench.host.engines import OF_THIS_MACHINE

#: What a failed trial's reason says of a full /dev/shm.
FULL_SHM = ("/dev/shm", "bus error")
#: A rank's exchange in a container this much slower than bare has lost its shared memory.
SLOW_EXCHANGE = 1.2


def _cpuset(scene: Scene) -> Iterator[Diagnosis]:
    case, seen = scene.case, scene.case.seen
    wanted = case.workers * case.world_size
    if case.cores and case.cores < seen.cpu_count and wanted > case.cores:
        yield Diagnosis(
            f"os.cpu_count() says {seen.cpu_count} and this job may use {case.cores} of them, for "
            f"{wanted} workers",
            "size the loader by len(os.sched_getaffinity(0)) and the cgroup's cpu.max: "
            f"{max(1, case.cores // case.world_size)} workers a rank, or ask for more cores",
            {"cpu_count": seen.cpu_count, "cores": case.cores, "workers": wanted},
        )


def _binding(scene: Scene) -> Iterator[Diagnosis]:
    case, seen = scene.case, scene.case.seen
    if 0 < seen.rank_cores < min(seen.core_share, case.workers + 1):
        cores = f"{seen.rank_cores} core{'s' * (seen.rank_cores > 1)}"
        yield Diagnosis(
            f"{seen.bound_rank} and its workers ({case.workers}) are bound to {cores}, and its "
            f"node has {seen.core_share} for each rank: what looks like slow storage or slow "
            "decoding may be this",
            'bind to more cores or not at all: launcher_options bind_to = "none"; srun '
            "--cpus-per-task, mpirun --map-by slot:PE=N",
            {"cores": seen.rank_cores, "cores a rank": seen.core_share, "workers": case.workers},
        )


def _shared_memory(scene: Scene) -> Iterator[Diagnosis]:
    reasons = scene.case.validity.reasons
    full = next((r for r in reasons if any(word in r.lower() for word in FULL_SHM)), "")
    if full:
        yield Diagnosis(
            f"trials failed for want of shared memory ({full})",
            "docker or podman: --shm-size (runtime_options.shm_mb); else fewer workers, a smaller "
            "prefetch or batch",
            {"/dev/shm bytes": scene.case.seen.shm_bytes, "trials": reasons[full]},
        )


def _squashfuse(scene: Scene) -> Iterator[Diagnosis]:
    case = scene.case
    if "squashfuse" in case.seen.mounted:
        starts = case.startup_s.value if case.startup_s else None
        yield Diagnosis(
            f"the image is mounted by {case.seen.mounted}: imports, and data inside it, are read "
            "through a process",
            "let an administrator enable kernel mounts (setuid Apptainer), unpack the image into a "
            "folder on a local disk (sandbox), and keep data outside of it",
            {"mounted": case.seen.mounted, "start-up s": starts},
        )


def _udev(scene: Scene) -> Iterator[Diagnosis]:
    if by := scene.case.seen.container.get("udev_hidden_from"):
        yield Diagnosis(
            f"/run/udev is not shown in the container, and {by} looks up its devices there: "
            "GPUDirect Storage falls back to POSIX reads through host memory",
            "bind /run/udev read-only (docker --volume, apptainer --bind), or compare without it",
            {"hidden from": by},
        )


def _store(scene: Scene) -> Iterator[Diagnosis]:
    if (on := scene.case.seen.store) not in OF_THIS_MACHINE:
        starts = scene.case.startup_s.value if scene.case.startup_s else None
        yield Diagnosis(
            f"the engine keeps images and upper layers on {on}: imports, and what is written "
            "inside, go to its servers",
            "move the store to a local disk (docker: data-root; podman: graphroot in storage.conf)",
            {"store": on, "start-up s": starts},
        )


def _identity(scene: Scene) -> Iterator[Diagnosis]:
    if users := scene.case.seen.container.get("lustre_users"):
        yield Diagnosis(
            f"the data are on Lustre and the user is in a {users}: the servers look up groups by "
            "the uid outside of it (identity_upcall), so opening may be refused or slow",
            "chmod -R a+rX on the dataset, a runtime without a user namespace (setuid Apptainer), "
            "and compare the stages `metadata` and `files` with bare",
            {"user namespace": users},
        )


def _in_memory(scene: Scene) -> Iterator[Diagnosis]:
    seen = scene.case.seen
    if on := seen.container.get("image_on"):
        used = int(seen.container.get("image_mount_bytes") or 0)
        yield Diagnosis(
            f"the image is unpacked on {on}, where {used >> 20} MiB of memory are used that the "
            "page cache does not have",
            "unpack images on a local disk, or run the SIF from the mount",
            {"bytes in memory": used, "data bytes": scene.suite.dataset.bytes},
        )


def _memory(scene: Scene) -> Iterator[Diagnosis]:
    limit, data = scene.case.seen.memory_bytes, scene.suite.dataset.bytes
    if 0 < limit < data:
        yield Diagnosis(
            f"the memory limit ({limit >> 20} MiB) also holds the page cache, and the data take "
            f"{data >> 20} MiB: every epoch reads again what the one before evicted",
            "ask for more memory, or store fewer bytes a sample",
            {"memory bytes": limit, "data bytes": data},
        )


def _single_copy(scene: Scene) -> Iterator[Diagnosis]:
    here = _exchange_s(scene.case)
    bare = next((c for c in scene.suite.pipelines if _same_but_bare(c, scene.case)), None)
    there = _exchange_s(bare) if bare else None
    if here and there and here > SLOW_EXCHANGE * there:
        yield Diagnosis(
            f"ranks exchange gradients in {1e3 * here:.1f} ms a step, {here / there:.1f} x as long "
            "as bare: each rank has a user namespace of its own, so that single-copy shared memory "
            "is lost",
            "one container a node for all its ranks (apptainer: --sharens, or setuid), or UCX_TLS="
            "sysv,ib",
            {"exchange s": here, "exchange s, bare": there},
        )


def _exchange_s(case: CaseResult) -> float | None:
    return case.comm.exchange_s if isinstance(case.comm, CommunicationResult) else None


def _same_but_bare(other: CaseResult, case: CaseResult) -> bool:
    keys = ("pipeline", "trainer", "batch", "workers", "world_size", "placement", "order")
    alike = all(getattr(other, key) == getattr(case, key) for key in keys)
    return case.runtime != "bare" and other.runtime == "bare" and alike


def _slower(scene: Scene) -> Iterator[Diagnosis]:
    for c in scene.suite.contrasts:
        against = "runtime" in c.over and c.arm == scene.case.case and c.cache == scene.cache
        if not against or c.outcome.verdict != SLOWER or not c.outcome.ratio:
            continue
        stage = c.attribution.stage if c.attribution else ""
        where = f"; the difference is in {stage}" if stage else ""
        yield Diagnosis(
            f"{c.arm_name} takes {c.outcome.ratio:.2f} x the time of {c.base_name} at {c.stage}"
            f"{where}",
            f"run it as {c.base_name}, or compare the confounders of this contrast",
            {"time ratio": c.outcome.ratio, "pairs": c.pairs},
            c.outcome.simultaneous if c.stage == "train" else None,
        )


_DOCS = "docs/containers.md"
_ANY = ("warm",)  # found once a case, whatever the cache

RULES = (
    Rule("cpuset", "workers by os.cpu_count(), which takes no cpuset or quota into account",
         "PyTorch, torch.utils.data: its own warning takes no cgroup into account", _cpuset,
         caches=_ANY),
    Rule("binding", "a rank and its workers are bound to fewer cores than there are for it",
         "srun and mpirun: their own manuals, on binding", _binding, caches=_ANY),
    Rule("shared memory", "/dev/shm is too small for the queue of batches", _DOCS, _shared_memory,
         caches=_ANY),
    Rule("squashfuse", "the image is mounted in user space", _DOCS, _squashfuse, caches=_ANY),
    Rule("udev", "/run/udev is hidden in the container: no GPUDirect Storage without it",
         "NVIDIA, GPUDirect Storage: cuFile's compatibility mode", _udev, caches=_ANY),
    Rule("image store", "the container engine's store is on a filesystem of other machines",
         _DOCS, _store, caches=_ANY),
    Rule("identity", "a user namespace on a Lustre mount, whose servers see another user",
         "Lustre Operations Manual, identity upcall", _identity, caches=_ANY),
    Rule("image in memory", "the image is unpacked to tmpfs, which the page cache then lacks",
         _DOCS, _in_memory, caches=_ANY),
    Rule("memory limit", "a memory limit below the size of the data evicts them", _DOCS, _memory,
         caches=_ANY),
    Rule("single copy", "ranks in namespaces of their own copy what they exchange twice",
         "apptainer, issues 769 and 1583", _single_copy, caches=_ANY),
    Rule("container", "a container is slower than its base in paired blocks", "docs/method.md, "
         "Verdicts", _slower),
)  # fmt: skip
