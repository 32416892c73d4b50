"""What will go wrong in a container, found before a suite runs; each finding has its remedy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from iobench.advise import io_faults
from iobench.advise.case_facts import CaseFinding, Facts, Seen
from iobench.core import registry, transforms
from iobench.core.cases import Case, Dataset, Plan
from iobench.core.dataset import files_of, form_root, has_form
from iobench.core.errors import SpecError
from iobench.core.inside import DATA_INSIDE, JPEG_INSIDE
from iobench.core.protocols import Mount, Start
from iobench.host import container_io, engines, files, probes
from iobench.host.mounts import mount_of
from iobench.host.page_cache import effective_memory_bytes
from iobench.plan.blocks import groups, members
from iobench.plan.contrasts import contrasts

SELINUX = Path("/sys/fs/selinux/enforce")
#: Files and folders of a dataset that are looked at.
LOOKS = 256
#: So many files are not measured one by one.
MANY_FILES = 20_000
#: Filesystems whose server may turn root into nobody.
SQUASHING = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "fuse.sshfs")
_CAP_SYS_ADMIN = 21
#: What a process of a loader keeps in memory, its share of shared pages counted: torch's.
PROCESS_BYTES = 100 << 20


def before(cases: Iterable[Case], dataset: Dataset, images: Path = Path("images")) -> list[str]:
    """Return what a suite's user should know before it runs, one line a finding, none twice.

    ``images``: the folder of the container images.
    """
    lines: dict[str, None] = {}
    for case in cases:
        for finding in findings(case, dataset, look(case, dataset, images)):
            lines[f"{case.runtime}: {finding}"] = None
    return list(lines)


def no_turns(plan: Plan) -> str:
    """Return why the arms of a block cannot be started together here, "" where they can.

    All of them keep a queue of batches in shared memory at once, their processes in memory, and the
    data in the page cache.
    """
    by_label = {case.label: case for case in plan.cases}
    taking = [c for c in contrasts(plan.rules, {}) if c.slice_s]
    _, shared = probes.shared_memory()
    for together in groups(taking).values():
        queues = [_queue_bytes(by_label[label]) for label in members(together)]
        need = sum(queues)
        if need > shared:
            return (
                f"/dev/shm has {shared >> 20} MiB free, and the queues of {len(queues)} arms need "
                f"{-(-need >> 20)} MiB together; enlarge it, or use a smaller batch or prefetch"
            )
        started = sum(1 + by_label[label].workers for label in members(together))
        stored = {c.folder: c for c in map(by_label.__getitem__, members(together))}.values()
        need += sum(_stored_bytes(c, plan.dataset) for c in stored) + started * PROCESS_BYTES
        if need > effective_memory_bytes():
            return (
                f"the queues and processes of {len(queues)} arms and the data need "
                f"{need >> 20} MiB, and do not fit into memory together"
            )
    return ""


def _stored_bytes(case: Case, dataset: Dataset) -> int:
    """Return the bytes of a case's stored form; the samples' own before it is made."""
    if case.folder == "jpeg" or not has_form(dataset, case.folder):
        return dataset.bytes
    return _bytes_of(files_of(case, dataset), dataset)


def _bytes_of(paths: Sequence[Path], dataset: Dataset) -> int:
    """Return the bytes of stored files; of very many, the samples' own."""
    few = len(paths) < MANY_FILES
    return sum(p.stat().st_size for p in paths) if few else dataset.bytes


def look(case: Case, dataset: Dataset, images: Path = Path("images")) -> Facts:
    """Return the facts that :func:`findings` needs for one case."""
    store, image = engines.store(case.runtime), io_faults.image_of(case, images)
    host = probes.host()
    available = registry.runtime_of(case).available
    root = form_root(dataset, case.folder)
    top = files.nearest(Path(dataset.root).absolute())
    form = registry.format_of(case)
    paths: list[Path] = form.files(dataset, root) if root.is_dir() else []
    chosen = paths[:: max(1, len(paths) // LOOKS)]
    folders = {p for f in chosen for p in f.parents if p == root or root in p.parents}
    seen = [s for p in [*sorted({*folders, Path(dataset.root)}), *chosen] if (s := _seen(p))]
    return Facts(
        uid=host.uid,
        groups=(host.gid, *host.groups),
        shm_bytes=(int(case.runtime_options.get("shm_mb") or 0) << 20) or host.shm_bytes,
        data_bytes=_bytes_of(paths, dataset),
        files=seen,
        fstype=mount_of(top).fstype,
        reachable=all(p.stat().st_mode & 0o001 for p in (top, *top.parents)),
        selinux=probes.read(SELINUX) == "1",
        user_namespaces=(available() and probes.user_namespaces()) or "",
        fuse=probes.fuse(),
        capabilities=capabilities(),
        store=io_faults.on(store),
        image=io_faults.on(image),
        memory_bytes=container_io.used_bytes(store or image or Path("/")),
        direct=io_faults.direct(),
        udev=container_io.UDEV.is_dir(),
        own_users=io_faults.own_users(case, host.uid),
    )


def _seen(path: Path) -> Seen | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return Seen(
        str(path), os.path.realpath(path), status.st_uid, status.st_gid, status.st_mode & 0o777,
        path.is_dir(),
    )  # fmt: skip


def capabilities() -> int:
    """Return this process's effective capabilities as bits; -1 (all) where they are not shown."""
    bits = probes.fields(probes.read("/proc/self/status")).get("CapEff")
    return int(bits, 16) if bits else -1


def findings(case: Case, dataset: Dataset, facts: Facts) -> list[CaseFinding]:
    """Return what will go wrong with this case; pure."""
    found = [*_shared_memory(case, facts), *_memory(case, facts), *io_faults.in_memory(facts)]
    if registry.load("runtimes", case.runtime).isolated:
        found += [*_path(case, dataset), *_hidden(dataset, facts), *_unreadable(facts)]
        for check in (_squashed, _namespaces, _selinux, _capability, _fuse):
            found += check(case, facts)
        found += [*io_faults.udev(case, facts), *io_faults.identity(case, facts)]
        found += io_faults.far_store(facts)
    return found


def _queue_bytes(case: Case) -> int:
    """Return the bytes of the batches that a case's loader keeps in shared memory."""
    if case.loader != "torch" or not case.workers:
        return 0
    batches = (case.workers * case.prefetch + 1) * case.world_size
    return batches * transforms.batch_bytes(case.transform, case.batch)


def _shared_memory(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    need = _queue_bytes(case)
    ranks = f" x {case.world_size} ranks" if case.world_size > 1 else ""
    if facts.shm_bytes < need:
        yield CaseFinding(
            "/dev/shm",
            f"{facts.shm_bytes >> 20} MiB, and the loader's queue of {case.workers} workers x "
            f"{case.prefetch} batches{ranks} needs {-(-need >> 20)} MiB: workers would die with "
            "'bus error'",
            "set runtime_options.shm_mb higher or leave it out (docker, podman), enlarge the "
            "host's /dev/shm, or use a smaller batch, prefetch or fewer workers",
        )


def _memory(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    if 0 < case.memory_bytes < facts.data_bytes:
        yield CaseFinding(
            "memory limit",
            f"memory = {case.memory_bytes >> 20} MiB also limits the page cache, and the data take "
            f"{facts.data_bytes >> 20} MiB: what this arm reads is evicted again and warm reads "
            "turn cold",
            "raise memory above the dataset's size, give every arm the same limit, or take fewer "
            "samples",
        )


def _path(case: Case, dataset: Dataset) -> Iterator[CaseFinding]:
    runtime = registry.runtime_of(case)
    mounts = [Mount(Path(dataset.root), DATA_INSIDE)]
    mounts += [Mount(Path(dataset.jpeg_root), JPEG_INSIDE)] if dataset.in_place else []
    try:
        runtime.argv(["true"], Start(image="image", mounts=mounts))
    except SpecError as error:
        reason, _, remedy = str(error).rpartition(": ")
        yield CaseFinding("path", f"{reason}, so its trials will fail", remedy)


def _hidden(dataset: Dataset, facts: Facts) -> Iterator[CaseFinding]:
    tops = [os.path.realpath(dataset.root)]
    tops += [os.path.realpath(dataset.jpeg_root)] if dataset.in_place else []
    outside = [s for s in facts.files if not any(Path(s.target).is_relative_to(t) for t in tops)]
    more = f" ({len(outside)} such files among {len(facts.files)} looked at)" if outside[1:] else ""
    for seen in outside[:1]:
        yield CaseFinding(
            "hidden data",
            f"{seen.path} leads to {seen.target}, which a container is not shown{more}",
            "copy the files instead of linking them, or give the dataset's real folder by --data",
        )


def _unreadable(facts: Facts) -> Iterator[CaseFinding]:
    for seen in facts.files:
        need = 5 if seen.folder else 4
        shift = 6 if seen.uid == facts.uid else 3 if seen.gid in facts.groups else 0
        if (seen.mode >> shift) & need != need:
            yield CaseFinding(
                "unreadable data",
                f"{seen.path} (owner {seen.uid}:{seen.gid}, mode {seen.mode:04o}) cannot be read "
                f"by uid {facts.uid} inside: a container has no capability to pass that by",
                f"chmod -R a+rX, or chown -R {facts.uid}, on the dataset",
            )
            return


def _squashed(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    if case.runtime == "docker" and facts.fstype in SQUASHING and not facts.reachable:
        yield CaseFinding(
            "root squash",
            f"the docker daemon is root, whom a {facts.fstype} server may turn into nobody, and "
            "the folders above the data are not open to everybody: its bind mount may fail",
            "chmod o+x those folders, or use apptainer, podman or charliecloud, which run as the "
            "user",
        )


def _namespaces(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    needed = case.runtime == "charliecloud" or (
        case.runtime in ("podman", "apptainer") and facts.uid != 0
    )
    if needed and facts.user_namespaces:
        reason, _, remedy = facts.user_namespaces.partition(": ")
        yield CaseFinding("user namespaces", reason, remedy)


def _selinux(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    labelled = case.runtime not in ("docker", "podman") or case.runtime_options.get("label")
    if facts.selinux and not labelled:
        yield CaseFinding(
            "SELinux",
            "it is enforcing, and a container may not read files that are not labelled for it",
            "set runtime_options.label = 'disable' (or label the dataset: chcon -Rt "
            "container_file_t)",
        )


def _capability(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    capable = case.runtime == "docker" or facts.capabilities >> _CAP_SYS_ADMIN & 1
    if facts.uid == 0 and not capable:
        yield CaseFinding(
            "capability",
            "this root lacks CAP_SYS_ADMIN (is this itself a container?) and can mount nothing",
            "start the outer container with --cap-add SYS_ADMIN, or measure on its host",
        )


def _fuse(case: Case, facts: Facts) -> Iterator[CaseFinding]:
    mounts_sif = case.runtime == "apptainer" and case.runtime_options.get("mode") != "sandbox"
    if mounts_sif and facts.uid != 0 and facts.fuse:
        reason, _, remedy = facts.fuse.partition(": ")
        yield CaseFinding(
            "/dev/fuse",
            f"{reason}: a SIF file cannot be mounted",
            f"{remedy}, or set mode = 'sandbox'",
        )
