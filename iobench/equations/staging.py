"""When a copy of the data pays, on one node and, predicted, on several."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Staging:
    """A copy and the epochs that it serves, as one node had them.

    ``seconds``: to make the copy of ``nbytes``.  ``remote_s``, ``local_s``: one epoch from the
    shared mount, and from the copy.
    """

    seconds: float
    nbytes: float
    remote_s: float
    local_s: float

    @property
    def epochs(self) -> float | None:
        """Epochs after which the copy pays: its time / what an epoch saves; None: never."""
        saved = self.remote_s - self.local_s
        return self.seconds / saved if saved > 0 else None

    def at(self, nodes: int, bandwidth: float) -> tuple[float, float | None]:
        """Return (seconds to stage, epochs after which that pays) on so many nodes; a prediction.

        Each node makes a whole copy of its own, so ``nodes * nbytes`` come through the mount, whose
        ``bandwidth`` (bytes/s) all of them share.  An epoch is shared out: each node reads its
        part, from the mount no faster than ``nbytes / bandwidth`` for all together.
        """
        seconds = max(self.seconds, nodes * self.nbytes / bandwidth)
        remote_s = max(self.remote_s / nodes, self.nbytes / bandwidth)
        several = Staging(seconds, self.nbytes, remote_s, self.local_s / nodes)
        return seconds, several.epochs
