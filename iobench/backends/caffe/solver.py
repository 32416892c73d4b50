"""Solvers as prototxt: ours, and a user's own with our data layer in its net."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List, Sequence, Tuple

from iobench.backends.caffe import nets
from iobench.backends.caffe.prototxt import Message, Word, message, parse, render
from iobench.core.errors import SpecError

#: A loss below this leaves probabilities of the other classes near float32's smallest numbers.
_NOTHING = 1e-6
SOLVER, NET = "solver.prototxt", "net.prototxt"
#: Fields of a user's solver for its net, what else runs, and its end.
_OURS = (
    "net", "train_net", "net_param", "train_net_param", "test_net", "test_net_param", "train_state",
    "test_state", "test_iter", "test_interval", "test_initialization", "display", "average_loss",
    "max_iter", "snapshot", "snapshot_prefix", "snapshot_after_train", "snapshot_format",
    "snapshot_diff", "solver_mode", "device_id", "random_seed", "debug_info",
)  # fmt: skip

#: Layers of a user's net that do more than compute.
_FORBIDDEN = {"Python": "runs a module's code", "HDF5Output": "writes a file"}


@dataclasses.dataclass(frozen=True)
class SolverJob:
    """What Caffe is asked to train."""

    name: str
    net: str  # prototxt
    solver: Message  # without the net's path
    parameters: int = 0  # values that are trained; 0 where the net is the user's

    def write(self, folder: Path) -> Path:
        """Write both files into ``folder``; return the solver's path."""
        (folder / NET).write_text(self.net)
        path = folder / SOLVER
        path.write_text(render(message(net=str(folder / NET)).plus(self.solver)))
        return path


def vanished(losses: Sequence[float]) -> str:
    """Return a remark on steps whose loss was nothing, "" where there was none.

    Batches of one class (a dataset in stored order may be sorted by class) are learned by heart.
    """
    nothing = sum(loss < _NOTHING for loss in losses)
    if not nothing:
        return ""
    return (
        f"{nothing} of {len(losses)} steps had a loss of 0, as batches of one class have: their "
        "gradients are denormal numbers, with which a CPU computes up to ten times slower; mix the "
        "classes, or lower learning_rate"
    )


def ours(name: str, data: Message, classes: int, run: Message, **rates: float) -> SolverJob:
    """Return the job of a net of ``caffe/nets``, trained by SGD with a fixed rate.

    ``run``: see :func:`running`.  ``rates``: base_lr, momentum, weight_decay.
    """
    net, parameters = nets.describe(name, data, classes)
    fixed = {rate: float(value) for rate, value in rates.items()}
    solver = message(type="SGD", lr_policy="fixed", **fixed)
    solver = solver.without(*(field for field, _ in run.fields)).plus(run)
    return SolverJob(name, render(net), solver, parameters)


def running(iterations: int, seed: int, display: int = 0, *, frozen: bool = False) -> Message:
    """Return the fields of a solver that iobench decides, in ours and in a user's.

    ``frozen``: a learning rate of 0, for one batch that is trained on again and again: learned by
    heart its gradients vanish, and with denormal numbers a CPU computes ten times slower.
    """
    return message(
        base_lr=0.0 if frozen else None,
        max_iter=iterations,
        display=display,
        snapshot_after_train=False,
        solver_mode=Word("CPU"),
        random_seed=seed,
    )


def users(path: str, data: Message, run: Message) -> SolverJob:
    """Return the job of a user's solver: its own net and rule, our data layer and length.

    Layers without a bottom in the TRAIN phase are its data layers: there must be one, with two
    tops, which ours takes the place of.  Raises SpecError, naming the file, for one that is not
    there, is no prototxt, or is not so.
    """
    solver = _read(Path(path), "solver")
    if solver.get("iter_size", "1") != "1":
        raise SpecError(
            f"{path}: iter_size {solver.get('iter_size')} takes several batches a step, and one is "
            "measured: leave it out, and give the case a larger batch"
        )
    net, where = _net_of(solver, Path(path))
    layers, tops = _without_data(net, where)
    ours = message(top=tops).plus(data.without("top"))
    whole = message(name=net.get("name", "net"), layer=[ours, *layers])
    rule = solver.without(*_OURS, *(name for name, _ in run.fields)).plus(run)
    return SolverJob(str(net.get("name") or Path(path).stem), render(whole), rule)


def _read(path: Path, what: str) -> Message:
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or "no text"
        raise SpecError(
            f"cannot read the {what} {path}: {reason}; give a path that the worker sees (a "
            "container sees the dataset's folder, not the host's others)"
        ) from None
    return parse(text, str(path))


def _net_of(solver: Message, path: Path) -> Tuple[Message, str]:
    """Return the user's net and where it is written."""
    for name in ("net_param", "train_net_param"):
        if isinstance(solver.get(name), Message):
            return solver.get(name), str(path)
    named = str(solver.get("train_net") or solver.get("net"))
    if not named:
        raise SpecError(f"{path} names no net: it needs net, train_net or net_param")
    there = [p for p in (Path(named), path.parent / named) if p.is_file()]
    found = there[0] if there else path.parent / named
    return _read(found, "net"), str(found)


def _without_data(net: Message, where: str) -> Tuple[List[Message], List[str]]:
    """Return the training layers without the data layer, and the tops of that."""
    if net.all("layers") or net.all("input"):
        raise SpecError(
            f"{where} is of an older Caffe (fields 'layers' or 'input'): bring it up to date by "
            "Caffe's upgrade_net_proto_text"
        )
    training = [layer for layer in net.all("layer") if _trains(layer)]
    for layer in training:
        kind = str(layer.get("type"))
        if why := _FORBIDDEN.get(kind):
            raise SpecError(f"{where} has a layer of type {kind}, which {why}: take it out")
    sources = [layer for layer in training if not layer.all("bottom")]
    if len(sources) != 1 or len(sources[0].all("top")) != 2:
        listed = ", ".join(f"{s.get('type')} with {len(s.all('top'))} tops" for s in sources)
        raise SpecError(
            f"{where} must have one data layer for training, with two tops (data and label), and "
            f"has: {listed or 'none'}"
        )
    return [layer for layer in training if layer.all("bottom")], sources[0].all("top")


def _trains(layer: Message) -> bool:
    """Return whether a layer is part of the net in the TRAIN phase (stages and levels left out)."""
    phases = [rule.get("phase") for rule in layer.all("include") if rule.get("phase")]
    phases += [layer.get("phase")] if layer.get("phase") else []
    excluded = [rule.get("phase") for rule in layer.all("exclude")]
    return ("TRAIN" in phases if phases else True) and "TRAIN" not in excluded
