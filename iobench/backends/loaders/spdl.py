"""SPDL's thread pipeline over any format: samples are made one by one, then put together.

As its authors write it: a source of ids, a stage of ``workers`` threads that makes samples, one
that stacks a batch of them, a sink.  A failed sample ends the epoch; SPDL's own default drops it.
"""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator, Union

from iobench.backends.loaders._batches import REQUIRES, BatchMaker, Sample, probe, stacked
from iobench.core import transforms
from iobench.core.cases import Batch
from iobench.core.errors import DatasetError, IobenchError
from iobench.core.members import LoaderBackend
from iobench.core.protocols import LoadRequest


class SpdlLoader:
    """One epoch of one rank through a ``spdl.pipeline.Pipeline``."""

    def __init__(self, request: LoadRequest, *, in_order: bool = True) -> None:
        """``in_order``: off (SPDL's own default), samples come as they are completed."""
        from spdl.pipeline import PipelineBuilder

        transforms.single_thread()  # imports the libraries before the clock starts
        workers = max(request.workers, 1)
        #: The sink's; six, and one in parts, that SPDL keeps between its stages; single samples.
        self.queue_batches = request.prefetch + 7 + -(-(workers + 4) // request.batch)
        reader = request.format.open(request.dataset, request.root)
        readers = [reader, *(copy.deepcopy(reader) for _ in range(workers - 1))]
        self._makers = [BatchMaker(request, each) for each in readers]
        self._own = threading.local()
        free = iter(self._makers)
        self._threads = ThreadPoolExecutor(
            workers, "iobench-spdl", lambda: setattr(self._own, "maker", next(free))
        )
        builder: Any = PipelineBuilder().add_source(request.batches().ravel().tolist())
        builder.pipe(
            self._sample,
            concurrency=workers,
            executor=self._threads,
            output_order="input" if in_order else "completion",
        )
        builder.aggregate(request.batch).pipe(stacked).add_sink(request.prefetch)
        self._builder = builder

    def batches(self) -> Iterator[Batch]:
        """Start the pipeline and yield the epoch's batches, once.

        Raises DatasetError, naming the sample, when one cannot be read, decoded or transformed.
        """
        pipeline: Any = self._builder.build(num_threads=1, max_failures=0)
        with pipeline.auto_stop():
            for batch in pipeline:
                if isinstance(batch, IobenchError):
                    raise DatasetError(str(batch))
                yield batch

    def close(self) -> None:
        """Stop the threads and close the readers.  Idempotent."""
        self._threads.shutdown(cancel_futures=True)
        for maker in self._makers:
            maker.close()

    def _sample(self, sample: int) -> Union[Sample, IobenchError]:
        """Return a sample, or why there is none."""
        made: Union[Sample, IobenchError] = self._own.maker.sample(sample)
        return made


BACKEND = LoaderBackend(
    SpdlLoader,
    "SPDL: a pipeline of threads that makes sample by sample, in the trainer's process",
    requires=("spdl.pipeline", *REQUIRES),
    libraries={"spdl.pipeline": "spdl-core"},
    stack="torch",
    decodes=True,
    also_audited=({"in_order": False},),
    probe=probe,
)
