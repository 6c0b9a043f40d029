"""Make windows of blocks as unkind as a TPU's pipeline leaves them.

Interpret mode writes a block back as soon as its last step has ended, and then reads the next one. A TPU begins to read
a block one step early, and finishes writing a block one step late: the results of the two previous steps may not have
arrived. And a window of `emit_pipeline` may hold anything once its block is written back: its next block is another
one, or the same one without its former contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.checking.access import Access, line_of
from systolic.checking.unkind import left_over
from systolic.compat import buffer_view, is_pipeline_write_back, left_over_memory

# A step's block is read during the previous step, and a block that a step has written arrives when the next step has
# ended: Pallas' schedule copies in, waits, computes, copies out, and waits for the previous copy out.
_IN_FLIGHT = 2

_Place = tuple[Any, int, int, int, Any]  # memory, buffer, device, core, transforms


@dataclass(slots=True)
class Windows:
    """Follows the windows of one run.

    Attributes:
      late: True: blocks are written back as late as possible.
      scratch: numbers of the buffers in interpret mode that are spoiled when the blocks of all outputs end.
      outputs: number of outputs that have blocks.
      came_back: a block that a pipeline inside a kernel has written back again, after others; None: there is none.
    """

    late: bool = False
    scratch: Sequence[int] = ()
    outputs: int = 0
    came_back: Access | None = None
    _step: int = 0
    _written: set[str] = field(default_factory=set)  # outputs that were written back since the step began
    _stores: dict[tuple[int, int], list[tuple[int, _Place, np.ndarray]]] = field(default_factory=dict)
    _copied_out: dict[tuple[int, int, int], _Place] = field(default_factory=dict)  # by device, core and semaphore
    _copied_in: set[tuple[int, int]] = field(default_factory=set)  # buffers, by device
    _blocks: dict[tuple[int, int, int, int], list[str]] = field(default_factory=dict)  # as they were written back

    def at_step(self) -> None:
        """Record that another step of the grid begins."""
        self._step += 1
        if self.scratch and len(self._written) == self.outputs:
            for number in self.scratch:
                _spoil((None, number, 0, 0, ()))
        self._written.clear()

    def called(
        self, name: str, source: Any, options: Mapping[str, Any], args: Sequence[Any], function: Callable[..., Any]
    ) -> Any:
        """Call a function of the interpreter with its arguments; see `compat.watched_interpreter`."""
        if name == "get" and self.late and options.get("input_name") is not None:
            return self._read_early(args, function)
        if name == "store" and options.get("output_name") is not None:
            self._written.add(options["output_name"])
            if self.late:
                self._keep(_place(args))
        result = function(*args)
        if name == "dma_start":
            self._copy_started(source, args)
        elif name == "dma_wait" and (window := self._copied_out.pop(_at_core(args, 3), None)) is not None:
            _spoil(window)
        return result

    def _keep(self, place: _Place) -> None:
        view = buffer_view(*place)
        if view is not None:
            stores = self._stores.setdefault((place[2], place[1]), [])
            stores.append((self._step, place, np.array(view)))
            del stores[: -4 * _IN_FLIGHT]

    def _read_early(self, args: Sequence[Any], function: Callable[..., Any]) -> Any:
        place = _place(args)
        recent = [store for store in self._stores.get((place[2], place[1]), ()) if store[0] >= self._step - _IN_FLIGHT]
        written = [(where, np.array(buffer_view(*where))) for _, where, _ in recent]
        for _, where, before in reversed(recent):
            buffer_view(*where)[...] = before
        try:
            return function(*args)
        finally:
            for where, now in written:
                buffer_view(*where)[...] = now

    def _copy_started(self, source: Any, args: Sequence[Any]) -> None:
        device, core = int(args[1]), int(args[2])
        self._copied_in.add((device, int(args[7])))
        if source is None or not is_pipeline_write_back(source) or (device, int(args[4])) in self._copied_in:
            return
        self._copied_out[_at_core(args, 9)] = (args[3], int(args[4]), device, core, args[5])
        blocks = self._blocks.setdefault((device, core, int(args[4]), int(args[7])), [])
        block = str(args[8])
        if blocks and blocks[-1] != block and block in blocks and self.came_back is None:
            self.came_back = Access(where=line_of(source), device=device)
        blocks.append(block)


def _at_core(args: Sequence[Any], at: int) -> tuple[int, int, int]:
    """Return the calling device and core, and a number among the arguments: each core has its own semaphores."""
    return int(args[1]), int(args[2]), int(args[at])


def _place(args: Sequence[Any]) -> _Place:
    """Read the place of an access from the arguments of `get` and `store`."""
    return args[3], int(args[4]), int(args[1]), int(args[2]), args[5]


def _spoil(place: _Place) -> None:
    view = buffer_view(*place)
    if view is not None:
        view[...] = left_over(view.shape, view.dtype, left_over_memory())
