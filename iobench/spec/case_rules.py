"""One case: whether its parts go together."""

from __future__ import annotations

from iobench import bridge, codec, registry, world
from iobench.errors import SpecError
from iobench.images.model import NAMES as IMAGES
from iobench.model import Case
from iobench.options import check_options
from iobench.order import check_order


def check_case(case: Case, where: str) -> None:
    """Judge one case; raises SpecError that begins with ``where`` and says what is allowed."""
    loader = registry.load("loaders", case.loader)
    form = registry.load("formats", case.format)
    trainer = registry.load("trainers", case.trainer)
    runtime = registry.load("runtimes", case.runtime)
    launcher = registry.load("launchers", case.launcher)
    if loader.formats is not None and case.stored_form not in loader.formats:
        allowed = ", ".join(sorted(loader.formats))
        raise SpecError(
            f"{where}: loader {case.loader!r} cannot read {case.stored_form!r}; it reads: {allowed}"
        )
    if case.content not in form.contents:
        raise SpecError(f"{where}: format {case.format!r} cannot hold {case.content!r} samples")
    try:
        check_order(case.order)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    orders = loader_orders(case)
    if orders is not None and case.order.partition(":")[0] not in orders:
        raise SpecError(
            f"{where}: {case.pipeline} cannot follow order {case.order!r}; it follows: "
            f"{', '.join(sorted(orders))}"
        )
    if case.transform not in codec.TRANSFORMS:
        allowed = ", ".join(sorted(codec.TRANSFORMS))
        raise SpecError(f"{where}: transform {case.transform!r} is unknown; allowed: {allowed}")
    if loader.transforms is not None and case.transform not in loader.transforms:
        raise SpecError(
            f"{where}: loader {case.loader!r} cannot do transform {case.transform!r}: "
            f"{loader.no_transform}; it does: {', '.join(sorted(loader.transforms))}"
        )
    if trainer.loaders is not None and case.loader not in trainer.loaders:
        raise SpecError(
            f"{where}: trainer {case.trainer!r} goes with loader "
            f"{', '.join(sorted(trainer.loaders))}, not with {case.loader!r}"
        )
    _check_image(case, where)
    for axis, name, make, options in (
        ("loader", case.loader, loader.make, case.loader_options),
        ("format", case.format, form.make, case.format_options),
        ("trainer", case.trainer, trainer.make, case.trainer_options),
        ("runtime", case.runtime, runtime.make, case.runtime_options),
        ("launcher", case.launcher, launcher.make, case.launcher_options),
    ):
        check_options(f"{where}: {axis} {name}", make, options)
    try:  # only these two know which of their values are possible
        launcher.make(**case.launcher_options).argv((), world_size=case.world_size)
        trainer.step_s(case.batch, case.trainer_options)
        _check_shape(case)
        runtime.make(**case.runtime_options)
        world.check(case)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _check_shape(case: Case) -> None:
    """Judge whether the trainer's net takes what the transform makes."""
    taken = registry.load("trainers", case.trainer).shape(case.trainer_options)
    fits = [t.name for t in codec.TRANSFORMS.values() if t.shape == taken]
    if taken is not None and case.transform not in fits:
        net = case.trainer_options.get("net")
        named = f"net {net!r}" if net else "the usual net"
        raise SpecError(
            f"transform {case.transform!r} does not fit {named} of trainer {case.trainer!r}, which "
            f"takes {'x'.join(map(str, taken))}; allowed: {', '.join(sorted(fits)) or 'none'}"
        )


def _check_image(case: Case, where: str) -> None:
    """Judge what a case runs in, and whether its data can lie there."""
    runtime = registry.load("runtimes", case.runtime)
    if case.image not in IMAGES:
        raise SpecError(f"{where}: image {case.image!r} is unknown; allowed: {', '.join(IMAGES)}")
    needed = registry.load("trainers", case.trainer).image
    if needed not in ("", case.image):
        raise SpecError(
            f"{where}: trainer {case.trainer!r} runs in image {needed!r}, not in {case.image!r}; "
            "leave image out"
        )
    if reason := out_of_reach(case):
        raise SpecError(f"{where}: {reason}")
    if case.placement in ("image", "overlay") and not runtime.isolated:
        raise SpecError(
            f"{where}: placement {case.placement!r} needs a container, and runtime "
            f"{case.runtime!r} is none; allowed: bind, tmpfs, staged"
        )
    if case.placement == "overlay" and runtime.no_overlay:
        raise SpecError(
            f"{where}: placement 'overlay' is not possible with runtime {case.runtime!r}: "
            f"{runtime.no_overlay}"
        )


def loader_orders(case: Case) -> frozenset[str] | None:
    """Return the orders the case's loader can follow on its format (None: any)."""
    orders: frozenset[str] | None = registry.load("loaders", case.loader).orders.get(
        case.stored_form
    )
    return orders


def out_of_reach(case: Case) -> str:
    """Return why the case's loader cannot be had where the case runs, "" where it can."""
    runtime = registry.load("runtimes", case.runtime)
    return bridge.impossible(case.loader, case.image, container=bool(runtime.make().form()))
