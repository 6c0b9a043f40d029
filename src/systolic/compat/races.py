"""The race detector of TPU interpret mode: its result, its clocks, and accesses that are compared at once."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np


def races_found() -> bool:
    """True if the race detector of TPU interpret mode found a race in the kernel that ran last."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    races = interpret_pallas_call.races
    return races is not None and races.races_found


@contextmanager
def clocks_of_copies(count: int) -> Iterator[None]:
    """Give the race detector `count` clocks for copies, which they take in turn, so that each run finds the same races.

    JAX has one clock for each core of a kernel, and draws one of them for each copy.
    """
    from jax._src.pallas.mosaic.interpret import params, shared_memory

    copies = itertools.count()

    def number(self: Any) -> int:
        return self.num_cores + next(copies) % (self.vector_clock_size - self.num_cores)

    def clocks(self: Any, devices: int) -> int:
        return devices * self.num_cores_or_threads + count

    with (
        patch.object(shared_memory.SharedMemory, "get_random_virtual_device_id", number),
        patch.object(params.SharedInterpretParams, "get_vector_clock_size", clocks),
    ):
        yield


@contextmanager
def accesses_compared_at_once() -> Iterator[None]:
    """Compare an access with all earlier ones of its buffer at once: one by one takes most of the time of long kernels.

    If one of them has no order with it, JAX's own comparison follows, which reports the race.
    """
    from jax._src import source_info_util
    from jax._src.pallas.mosaic.interpret.race_detection_state import RaceDetectionState

    line = functools.lru_cache(maxsize=4096)(source_info_util.summarize)

    def compared(kind: str, others: tuple[str, ...], one_by_one: Any) -> Any:
        @functools.wraps(one_by_one)
        def check(self: Any, *access: Any, source_info: Any = None) -> None:
            *_, clock, buffer, _ = access
            times: defaultdict[Any, _Times] = vars(self).setdefault("_times", defaultdict(_Times))
            time = getattr(clock, "clock", clock)
            with self.lock:
                ordered = all(times[other, buffer].are_ordered(time) for other in others)
                times[kind, buffer].append(time)
                if ordered:
                    *accessor, _, _, place = access
                    frame = line(source_info) if source_info is not None else "pallas_call"
                    getattr(self, kind)[buffer].append((*accessor, clock, place, frame))
            if not ordered:
                one_by_one(self, *access, source_info=source_info)

        return check

    with patch.multiple(
        RaceDetectionState,
        check_read=compared("reads", ("writes",), RaceDetectionState.check_read),
        check_write=compared("writes", ("writes", "reads"), RaceDetectionState.check_write),
    ):
        yield


class _Times:
    """Vector clocks of accesses, as rows of an array that grows."""

    def __init__(self) -> None:
        self._rows = np.empty((0, 0), np.int32)
        self._count = 0

    def append(self, time: np.ndarray) -> None:
        if self._count == len(self._rows):
            rows = np.empty((max(8, 2 * self._count), len(time)), time.dtype)
            rows[: self._count] = self._rows.reshape(-1, len(time))
            self._rows = rows
        self._rows[self._count] = time
        self._count += 1

    def are_ordered(self, time: np.ndarray) -> bool:
        """True if each of them is before `time` or after it."""
        if not self._count:
            return True
        differences = self._rows[: self._count] - time
        lowest, highest = differences.min(1), differences.max(1)
        return bool((((highest <= 0) & (lowest < 0)) | ((lowest >= 0) & (highest > 0))).all())
