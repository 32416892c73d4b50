"""One block whose arms take turns: all are started, then each runs while the others are stopped.

What disturbs the machine for longer than a slice meets all arms alike (Bulej et al., ICPE 2020).
docs/method.md, "Arms that take turns".
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
from collections.abc import Iterator, Sequence

from iobench.analysis import ranks as rank_figures
from iobench.core.cases import Dataset, Trial
from iobench.core.channel import Ready
from iobench.core.clock import clock
from iobench.core.errors import CannotStop, TrialFailed
from iobench.core.records import INVALID, CacheProof, Record, Slices
from iobench.equations.signed_rank import FLOOR_PAIRS
from iobench.host import scratch
from iobench.host.agent import Agent, Freezer
from iobench.run import cache_proof
from iobench.run.trial import Attempt
from iobench.run.trial_settings import TrialSettings
from iobench.run.worker_process import Worker

#: So many blocks of a contrast measure how long its arms take to start.
STARTS = FLOOR_PAIRS
#: Of arms that start at once each is listened to for so long, in turn.
EACH_S = 0.01
#: So long is waited for news of a rank of which no process is seen.
LOOK_S = 1.0
TOGETHER = "the arms took turns on several mounts, and one's counter counts all of them"


def run_block(
    trials: Sequence[Trial], dataset: Dataset, attempts: Sequence[int], settings: TrialSettings
) -> list[Record]:
    """Run one attempt at all arms of a block, in turns; return a record each.

    Where one arm fails, the others' records are INVALID.  Raises what :func:`run_trial` raises, and
    CannotStop where this user may not stop an arm's processes.
    """
    numbered = zip(trials, attempts, strict=True)
    tries = [Attempt(trial, dataset, settings.of(trial, n)) for trial, n in numbered]
    take_turns(tries, settings.agent)
    return [a.record(n, at_once=len(tries)) for a, n in zip(tries, attempts, strict=True)]


def take_turns(tries: Sequence[Attempt], agent: Agent) -> None:
    """Run the attempts of one block in turns; where one fails, the others are INVALID."""
    trial = tries[0].trial
    try:
        with contextlib.ExitStack() as stack:
            arms = opened(tries, agent, stack)
            driver_s = rounds(arms, trial.slice_s, random.Random(trial.id))
            end(arms, driver_s)
    except _Spoilt as spoilt:
        for other in tries:
            if other is not spoilt.attempt:
                arm, why = spoilt.attempt.trial.arm, spoilt.attempt.reasons[0]
                other.status, other.reasons = INVALID, (f"{arm}, which took turns with it: {why}",)


class _Spoilt(Exception):
    """The block is lost by this attempt."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__()
        self.attempt = attempt


@contextlib.contextmanager
def _blamed(attempt: Attempt) -> Iterator[None]:
    done = False
    with attempt.judged():
        yield
        done = True
    if not done:
        raise _Spoilt(attempt)


@dataclasses.dataclass
class Arm:
    """One arm: its attempt, its processes on this node, and when they ran."""

    attempt: Attempt
    worker: Worker
    agent: Agent
    freezer: Freezer
    processes: list[int] = dataclasses.field(default_factory=list)
    done: bool = False
    stopped_at: float = 0.0
    thawed: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    stop_s: list[float] = dataclasses.field(default_factory=list)
    thaw_s: list[float] = dataclasses.field(default_factory=list)

    def find(self) -> None:
        """Look which processes it has now.

        Raises CannotStop where they are not this user's, TrialFailed where they have ended.
        """
        self.processes = self._family()
        if not self.processes:
            self.worker.check(clock() + LOOK_S)
            raise CannotStop(f"no process of {self.attempt.trial.case.runtime} is seen from here")
        self.freezer.watch(self.processes)

    def go(self) -> tuple[float, float]:
        """Let it run; the time that it was stopped counts against no limit."""
        begun, last = self.freezer.go(self.processes)
        self.worker.begun += begun - self.stopped_at
        return begun, last

    def stop(self) -> tuple[float, float]:
        """Stop it."""
        self.stopped_at, seen = self.freezer.stop(self.processes)
        return self.stopped_at, seen

    def release(self) -> None:
        """Let it run, whatever it is to do."""
        self.freezer.go(self.processes)

    def turn(self, slice_s: float) -> None:
        """Let it run for a slice, or until its loop ends."""
        begun, last = self.go()
        self.done = self.worker.arrived(begun + slice_s)
        sent, seen = self.stop()
        self.thawed.append((begun, sent))
        self.stop_s.append(seen - sent)
        self.thaw_s.append(last - begun)
        if self.done and (new := set(self._family()) - set(self.processes)):
            raise TrialFailed(f"it started {len(new)} processes in its loop, which ran unstopped")

    def _family(self) -> list[int]:
        return self.agent.family(self.worker.processes())


def opened(tries: Sequence[Attempt], agent: Agent, stack: contextlib.ExitStack) -> list[Arm]:
    """Start every arm and bring it to the barrier before its loop.

    In the first blocks each starts alone on the machine, which measures its start-up; in later ones
    all start at once, which takes less time and measures none.
    """
    freezer, arms = stack.enter_context(agent.freezer()), []
    workers = _started(tries, stack) if tries[0].trial.block > STARTS else {}
    for attempt in tries:
        with _blamed(attempt):
            worker = workers.get(attempt) or stack.enter_context(
                attempt.running(stack.enter_context(scratch.folder()))
            )
            worker.listener.holds = True
            arm = Arm(attempt, worker, agent, freezer)
            stack.callback(arm.release)  # what is stopped ends late
            arm.find()
            arm.stop()
            arms.append(arm)
    for arm in arms:
        with _blamed(arm.attempt):
            arm.go()
            arm.attempt.prepare(arm.worker)
            arm.stop()
    for arm in arms:  # what counts all that crosses a mount counts the block
        with _blamed(arm.attempt):
            arm.attempt.count()
    for arm in arms:
        with _blamed(arm.attempt):
            arm.go()
            arm.worker.release()
            arm.worker.arrived(math.inf)
            arm.find()
            arm.stop()
            arm.worker.listener.begin()  # it reads that when it goes on
    return arms


def _started(tries: Sequence[Attempt], stack: contextlib.ExitStack) -> dict[Attempt, Worker]:
    """Start all arms at once and wait until they are ready."""
    workers = {}
    for attempt in tries:
        with _blamed(attempt):
            folder = stack.enter_context(scratch.folder())
            workers[attempt] = stack.enter_context(attempt.started_in(folder))
    left = list(tries)
    while left:
        for attempt in list(left):
            with _blamed(attempt):
                if workers[attempt].arrived(clock() + EACH_S, Ready):
                    left.remove(attempt)
    return workers


def rounds(arms: Sequence[Arm], slice_s: float, draw: random.Random) -> float:
    """Let every arm run to the end of its loop: each once a round, in one order drawn for all.

    Between two turns of an arm every other one has just one, so what slows the cores for longer
    than a slice meets neighbours alike; orders drawn for each round would leave more of it.
    Return the CPU seconds that this process used for it.
    """
    left, begun = draw.sample(arms, len(arms)), os.times()
    while left:
        for arm in left:
            with _blamed(arm.attempt):
                arm.turn(slice_s)
        left = [arm for arm in left if not arm.done]
    ended = os.times()
    return ended.user - begun.user + ended.system - begun.system


def end(arms: Sequence[Arm], driver_s: float = 0.0) -> None:
    """Have all arms send their results and end; judge each.

    ``driver_s``: CPU seconds of the driver while they took turns.
    """
    for arm in arms:
        arm.go()
        arm.worker.listener.begin()
    for arm in arms:
        with _blamed(arm.attempt):
            arm.attempt.ranks = arm.worker.results()
    for arm in arms:
        with _blamed(arm.attempt):
            arm.attempt.count_again()
    used_s = [rank_figures.together(arm.attempt.ranks).cpu_s for arm in arms]
    for arm, own_s in zip(arms, used_s, strict=True):
        others_s = driver_s + sum(used_s) - own_s
        arm.attempt.slices = Slices(
            arm.thawed, arm.stop_s, arm.thaw_s, len(arm.processes), others_s
        )
        with _blamed(arm.attempt):
            arm.attempt.prove(arm.worker)
    part([arm.attempt for arm in arms], arms[0].agent)
    for arm in arms:
        with _blamed(arm.attempt):
            arm.attempt.judge()


def part(tries: Sequence[Attempt], agent: Agent) -> None:
    """Leave each arm of a block with its own bytes, where a mount's counter counted all arms'.

    Warm arms need not be parted: none of them may have moved any.
    """
    proofs, trial = [attempt.proof for attempt in tries], tries[0].trial
    shared = [proof.others_bytes is not None for proof in proofs]
    if trial.cache == "warm" or not any(shared):
        return
    if trial.cache == "cold" and all(shared) and _on_one_mount(tries, agent):
        parted = cache_proof.apart(proofs)
    else:
        parted = [p if p.others_bytes is None else _uncounted(p) for p in proofs]
    for attempt, proof in zip(tries, parted, strict=True):
        attempt.take(proof)


def _on_one_mount(tries: Sequence[Attempt], agent: Agent) -> bool:
    return all(agent.same_mount(tries[0].where, attempt.where) for attempt in tries)


def _uncounted(proof: CacheProof) -> CacheProof:
    return dataclasses.replace(proof, bytes_storage=None, counter=TOGETHER, others_bytes=None)
