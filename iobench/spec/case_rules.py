"""One case: whether its parts go together."""

from __future__ import annotations

from iobench.core import registry, transforms
from iobench.core.cases import Case
from iobench.core.errors import SpecError, shown
from iobench.core.options import check_options
from iobench.core.order import SEQUENCES, check_order
from iobench.core.own_images import EXAMPLES, is_own
from iobench.core.protocols import Ranks
from iobench.core.striping import striping
from iobench.worker import remote_loader


def check_case(case: Case, where: str) -> None:
    """Judge one case; raises SpecError that begins with ``where`` and says what is allowed."""
    try:
        _check_parts(case)
        _check_image(case)
        _check_options(case)
        _check_striping(case)
        _check_shape(case)
        _check_ranks(case)
        _check_nodes(case)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _check_parts(case: Case) -> None:
    """Judge whether loader, format, order, transform and trainer go together."""
    loader = registry.load("loaders", case.loader)
    form = registry.load("formats", case.format)
    trainer = registry.load("trainers", case.trainer)
    if loader.formats is not None and case.stored_form not in loader.formats:
        allowed = ", ".join(sorted(loader.formats))
        raise SpecError(
            f"loader {case.loader!r} cannot read {case.stored_form!r}; it reads: {allowed}"
        )
    if case.content not in form.contents:
        raise SpecError(f"format {case.format!r} cannot hold {case.content!r} samples")
    check_order(case.order)
    orders = loader.orders.get(case.stored_form, SEQUENCES)
    if case.order.partition(":")[0] not in orders:
        raise SpecError(
            f"{case.pipeline} cannot follow order {case.order!r}; it follows: "
            f"{', '.join(sorted(orders))}"
        )
    if case.transform not in transforms.TRANSFORMS:
        allowed = ", ".join(sorted(transforms.TRANSFORMS))
        raise SpecError(f"transform {case.transform!r} is unknown; allowed: {allowed}")
    if loader.transforms is not None and case.transform not in loader.transforms:
        raise SpecError(
            f"loader {case.loader!r} cannot do transform {case.transform!r}: "
            f"{loader.no_transform}; it does: {', '.join(sorted(loader.transforms))}"
        )
    registry.load("decoders", case.decoder)
    if case.decoder != Case.decoder and not loader.decodes:
        able = [n for n in registry.names("loaders") if registry.load("loaders", n).decodes]
        raise SpecError(
            f"loader {case.loader!r} takes no decoder ({case.decoder!r}): it decodes by itself, or "
            f"not at all; those that take one: {', '.join(able)}"
        )
    if trainer.loaders is not None and case.loader not in trainer.loaders:
        raise SpecError(
            f"trainer {case.trainer!r} goes with loader "
            f"{', '.join(sorted(trainer.loaders))}, not with {case.loader!r}"
        )


def _check_options(case: Case) -> None:
    for axis in ("loader", "format", "trainer", "runtime", "launcher"):
        name, options = getattr(case, axis), getattr(case, f"{axis}_options")
        member = registry.load(f"{axis}s", name)
        check_options(f"{axis}_options of {axis} {name}", member.make, options)
        member.judge(case)
    # only these know which of their values are possible
    launcher = registry.load("launchers", case.launcher).make(**case.launcher_options)
    if case.nodes == 1:
        launcher.argv((), Ranks(case.world_size))
    registry.load("trainers", case.trainer).step_s(case.batch, case.trainer_options)
    registry.runtime_of(case)


def _check_striping(case: Case) -> None:
    """Judge whether the files that a case reads are ones that can be spread."""
    if not case.striping:
        return
    check_options("striping", striping, case.striping)
    striping(**case.striping)  # type: ignore[arg-type]
    if empty := next((key for key, value in case.striping.items() if not value), None):
        raise SpecError(
            f"striping: {empty} = {shown(case.striping[empty])} asks for nothing: leave it out"
        )
    if registry.load("formats", case.format).fileless:
        raise SpecError(f"striping is of files, and format {case.format!r} has none: leave it out")
    if registry.load("placements", case.placement).make() is not None:
        raise SpecError(
            f"striping is of files on the filesystem under test, and placement {case.placement!r} "
            "puts them elsewhere; allowed: bind"
        )


def _check_shape(case: Case) -> None:
    """Judge whether the trainer's net takes what the transform makes."""
    taken = registry.load("trainers", case.trainer).shape(case.trainer_options)
    fits = [t.name for t in transforms.TRANSFORMS.values() if t.shape == taken]
    if taken is not None and case.transform not in fits:
        net = case.trainer_options.get("net")
        named = f"net {net!r}" if net else "the usual net"
        raise SpecError(
            f"transform {case.transform!r} does not fit {named} of trainer {case.trainer!r}, which "
            f"takes {'x'.join(map(str, taken))}; allowed: {', '.join(sorted(fits)) or 'none'}"
        )


def _check_image(case: Case) -> None:
    """Judge what a case runs in, and whether its data can lie there."""
    runtime = registry.load("runtimes", case.runtime)
    own, stack = is_own(case.image), registry.stack_of(case)
    if stack not in (known := registry.names("stacks")):
        allowed = f"{', '.join(known)}, or one of your own: {EXAMPLES}"
        raise SpecError(f"image {case.image!r} is unknown; allowed: {allowed}")
    if runtime.make().form() and not own and registry.load("stacks", stack).image is None:
        raise SpecError(
            f"runtime {case.runtime!r} runs images, and the stack {case.image!r} names "
            "none (no `image` in its file): use runtime bare"
        )
    needed = registry.load("trainers", case.trainer).stack
    if needed not in ("", stack):
        raise SpecError(
            f"trainer {case.trainer!r} runs in image {needed!r}, not in {case.image!r}; "
            "leave image out"
        )
    if reason := out_of_reach(case):
        raise SpecError(reason)
    placement = registry.load("placements", case.placement)
    if placement.in_image and (own or not runtime.isolated):
        known = registry.names("placements")
        others = [n for n in known if not registry.load("placements", n).in_image]
        reason = f"needs a container, and runtime {case.runtime!r} is none"
        if own:
            reason = f"does not change an image of your own ({case.image!r})"
        raise SpecError(f"placement {case.placement!r} {reason}; allowed: {', '.join(others)}")
    if reason := placement.refused(runtime):
        raise SpecError(
            f"placement {case.placement!r} is not possible with runtime {case.runtime!r}: {reason}"
        )


def out_of_reach(case: Case) -> str:
    """Return why what loads cannot be had where the case runs, "" where it can."""
    container = bool(registry.load("runtimes", case.runtime).make().form())
    stack = registry.stack_of(case)
    reason = remote_loader.impossible(case.loader, stack, container=container)
    if reason or not container or is_own(case.image):
        return reason
    lacks = registry.lacking(case)
    return lacks and f"{lacks}: use runtime bare, or an image of your own that has it"


def _check_ranks(case: Case) -> None:
    """Judge whether the launcher is where it starts, and whether several ranks make sense."""
    launcher = registry.load("launchers", case.launcher)
    scope = registry.scope_of(case)
    _check_scope(case, scope)
    if scope == "node" and case.image not in launcher.stacks:
        raise SpecError(
            f"launcher {case.launcher!r} starts inside the container, and image {case.image!r} has "
            f"none; those that have: {', '.join(sorted(launcher.stacks)) or 'no image'}"
        )
    if case.world_size == 1:
        return
    outside = scope == "rank" or (scope == "node" and case.nodes > 1)
    apart = registry.load("runtimes", case.runtime).apart
    if outside and (reason := apart(case) if apart else "does not show a rank who it is"):
        able = [n for n in registry.names("runtimes") if _takes_ranks(n)]
        together = case.nodes == 1 and case.image in launcher.stacks
        more = "; or set scope = 'node'" if together else ""
        raise SpecError(
            f"launcher {case.launcher!r} starts a container a {scope}, and runtime "
            f"{case.runtime!r} {reason}; runtimes for that: {', '.join(able)}{more}"
        )
    if not registry.load("trainers", case.trainer).ranks:
        able = [n for n in registry.names("trainers") if registry.load("trainers", n).ranks]
        raise SpecError(
            f"world_size = {case.world_size}, but trainer {case.trainer!r} exchanges no gradients: "
            f"every rank would train alone; those for several ranks: {', '.join(able)}"
        )
    ways = registry.load("loaders", case.loader).sharings.get(case.stored_form)
    if ways is not None and case.sharing not in ways:
        allowed = f"it shares by: {', '.join(sorted(ways))}" if ways else "it serves one rank only"
        raise SpecError(
            f"{case.pipeline} cannot share the data among ranks by {case.sharing!r}; {allowed}"
        )


def _check_scope(case: Case, scope: str) -> None:
    """Judge whether one container a node can hold a launcher that starts that node's ranks."""
    launcher = registry.load("launchers", case.launcher)
    if scope != "node" or (launcher.stacks and (case.nodes == 1 or launcher.carried)):
        return
    able = [n for n in registry.names("launchers") if registry.load("launchers", n).carried]
    where = " on several nodes" if launcher.stacks else ""
    raise SpecError(
        f"scope = 'node', but launcher {case.launcher!r} starts each rank{where} by itself, in a "
        f"container of its own: use scope 'rank', or launcher {', '.join(able)}"
    )


def _takes_ranks(runtime: str) -> bool:
    backend = registry.load("runtimes", runtime)
    return backend.apart is not None or not backend.isolated


def _check_nodes(case: Case) -> None:
    """Judge whether a case can be spread over several nodes."""
    if case.nodes == 1:
        return
    launcher = registry.load("launchers", case.launcher)
    if launcher.across is None:
        names = registry.names("launchers")
        able = [n for n in names if registry.load("launchers", n).across is not None]
        raise SpecError(
            f"nodes = {case.nodes}, but launcher {case.launcher!r} starts ranks on one; those for "
            f"several: {', '.join(able)}"
        )
    if case.world_size % case.nodes:
        raise SpecError(
            f"world_size = {case.world_size} cannot be shared out among nodes = {case.nodes}; set "
            "ranks_per_node"
        )
    hosts = [f"node{i}" for i in range(case.nodes)]
    launcher.make(**case.launcher_options).argv((), Ranks(case.world_size, hosts))
    if case.cpus or case.memory_bytes:
        raise SpecError(
            f"nodes = {case.nodes} with cpus or memory: limits are enforced on one node alone; "
            "limit the whole job by the batch system"
        )
    if registry.load("placements", case.placement).make() is not None:
        raise SpecError(
            f"nodes = {case.nodes} with placement {case.placement!r}: data are put somewhere on "
            "one node alone; use placement 'bind', on a filesystem that all nodes see"
        )
