"""The same search on more than one machine: trials run on a Dask cluster, which outlives its workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from systolic.chips import Chip
from systolic.compiler import WorkerPool
from systolic.measure import Measurement, submit_simulation
from systolic.tuning.search import COMPILE_LIMIT_S, Submit

_CONNECT_S = 20


class ClusterError(RuntimeError):
    """There is no Dask scheduler at that address, or Dask is not installed."""


@contextmanager
def cluster(
    address: str, *, time_limit_s: float = COMPILE_LIMIT_S, memory_limit_bytes: int | None = None
) -> Iterator[tuple[Submit, int]]:
    """Where `tune` sends its trials, and how many run at once: one for each thread of each Dask worker.

    A Dask worker compiles in a process of its own, as a search on one machine does: a crash of the compiler is a trial
    that failed, and not the worker's. Workers need `systolic[tpu]`; nothing is written there but the cache of programs.

    Args:
      address: such as "tcp://host:8786".
      time_limit_s: seconds of CPU time for one trial.
      memory_limit_bytes: of one trial; None: what the machine that compiles it has free.

    Raises:
      ClusterError: nobody answers there, or there are no workers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ClusterError("a scheduler needs Dask: pip install 'systolic[cluster]'") from error
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        threads: Any = client.nthreads()  # a coroutine only of an asynchronous client
        at_once = sum(threads.values())
        if at_once < 1:
            raise ClusterError(
                f"the Dask scheduler at {address} has no workers; start some with `dask worker {address}`"
            )
        # Not pure: the same trial sent twice is run twice, as here. The scheduler gives what a dead worker had to
        # another one, as often as its `allowed-failures` says: three times unless it is told otherwise.
        executor = client.get_executor(pure=False)
        alone = functools.partial(simulated_alone, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes)

        def submit(fn: Callable[..., Any], arguments: Sequence[Any], chip: Chip, label: str) -> Future[Measurement]:
            return executor.submit(alone, fn, tuple(arguments), chip, label)

        yield submit, at_once
        executor.shutdown(wait=False)


def simulated_alone(
    fn: Callable[..., Any],
    arguments: Sequence[Any],
    chip: Chip,
    label: str,
    *,
    time_limit_s: float = COMPILE_LIMIT_S,
    memory_limit_bytes: int | None = None,
) -> Measurement:
    """Compiles and simulates in a process of its own, on the machine where this is called."""
    with WorkerPool(max_workers=1, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        return submit_simulation(pool, fn, arguments, chip, label=label).result()
