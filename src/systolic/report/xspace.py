"""A simulated run as an XSpace, the protobuf of JAX's profiler, which XProf and `jax.profiler.ProfileData` read.

Planes, lines, events and stats have the names of a TPU's own trace. jaxlib makes the protobuf from text: it has the
schema, so that no further package is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from systolic.chips import UnknownChipError, chip
from systolic.report.trace import ROWS, Process, device_processes, span_label
from systolic.simulator import OpRun, SimulatedRun, SliceRun, SparseCoreRun
from systolic.timing.xplane_names import (
    CATEGORY,
    DEVICE_PLANE,
    DEVICE_TYPE,
    MODULES_LINE,
    OPS_LINE,
    PROVENANCE,
    SPARSE_CORE_OPS_LINE,
    STEPS_LINE,
)

_PS_PER_S = 1e12
_FIRST_OTHER_LINE = 3  # its number, after the lines of steps, modules and operations
_Stats = Mapping[str, int | float | str]


def xspace(run: SimulatedRun | SliceRun, *, title: str) -> bytes:
    """Return the timeline of a run as a serialized XSpace.

    A device is a plane with the lines of a real trace, and lines for rounds, straight code, stalls and copies. It shows
    the operations of the core that ends last. On a slice, the first device of each class represents its class.

    Args:
      title: the module's name where the run does not have it.
    """
    from jax.profiler import ProfileData

    devices = [(0, run)] if isinstance(run, SimulatedRun) else [(group.devices[0], group.run) for group in run.classes]
    planes = [
        _plane(device, device_run, process, title)
        for device, device_run in devices
        for process in device_processes(device_run)
        if process.core is device_run.later_core or isinstance(process.core, SparseCoreRun)
    ]
    return ProfileData.text_proto_to_serialized_xspace("\n".join(planes))


def _plane(device: int, run: SimulatedRun, process: Process, title: str) -> str:
    core = process.core
    assert core is not None
    is_sparse = isinstance(core, SparseCoreRun)
    name = f"{DEVICE_PLANE}{device}" + (f" SparseCore {core.core}" if is_sparse else "")
    plane = _Plane(run.clock_hz)
    if not isinstance(core, SparseCoreRun):
        module = run.module or title
        key = " ".join([module, run.chip, *(op.name for op in core.ops)])
        program = int.from_bytes(hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=7).digest())
        step, module_event = plane.event("0"), plane.event(f"{module}({program})")
        plane.line(0, STEPS_LINE, [plane.at(step, 0, core.cycles)])
        plane.line(1, MODULES_LINE, [plane.at(module_event, 0, core.cycles, {"program_id": program})])
        for number, op in enumerate(core.ops, 1):  # XProf takes symbol 0 for none
            stats = {**_op_stats(op), "program_id": program, "symbol_id": number}
            plane.event(f"%{op.name}", display=op.name, stats=stats, row=ROWS["op"])
    for row, row_name in process.rows.items():
        is_op = row == ROWS["op"]
        spans = [span for span_row, span in process.spans if span_row == row]
        events = [
            plane.at(
                plane.event(f"%{span.label}" if is_op else span_label(span), display=span_label(span), row=row),
                span.begin_cycles,
                span.end_cycles,
                {"bytes_transferred": span.amount} if span.kind == "copy" else {},
            )
            for span in spans
        ]
        ops_line = SPARSE_CORE_OPS_LINE if is_sparse else OPS_LINE
        if events:
            plane.line(2 if is_op else _FIRST_OTHER_LINE + row, ops_line if is_op else row_name, events)
    return plane.text(name, {PROVENANCE: f"{process.provenance} by systolic", **_chip_stats(run.chip)})


def _op_stats(op: OpRun) -> _Stats:
    """Return the stats of one call of an operation. Bytes are those that crossed HBM."""
    return {
        **({CATEGORY: op.category} if op.category else {}),
        **({"flops": op.flops, "model_flops": op.flops} if op.flops is not None else {}),
        "bytes_accessed": (op.hbm_read_bytes + op.hbm_written_bytes) // max(1, op.calls),
        **({"tf_op": f"{op.scope}:"} if op.scope else {}),
    }


def _chip_stats(name: str) -> _Stats:
    try:
        device = chip(name)
    except UnknownChipError:  # one that a program has registered
        return {}
    share = device.cores_per_device / device.cores_per_chip
    return {
        DEVICE_TYPE: device.device_kind.replace("lite", "Lite"),  # as the profiler spells it
        "peak_teraflops_per_second": device.peak_ops_per_s_per_chip["bfloat16"] * share / 1e12,
        "peak_hbm_bw_gigabytes_per_second": device.hbm_bytes_per_s_per_chip * share / 1e9,
    }


class _Plane:
    """The text of a plane in the making. Names of events and stats are in tables, by number from 1 on."""

    def __init__(self, clock_hz: float) -> None:
        self._ps_per_cycle = _PS_PER_S / clock_hz
        self._stat_numbers: dict[str, int] = {}
        self._event_numbers: dict[tuple[str, int], int] = {}
        self._event_stats: dict[int, str] = {}  # of every event of a kind, by its number
        self._event_names: list[str] = []
        self._lines: list[str] = []

    def event(self, name: str, *, display: str = "", stats: _Stats | None = None, row: int = -1) -> int:
        """Return the number of a kind of event, which is entered if it is new; `row` tells equal names apart."""
        number = self._event_numbers.get((name, row))
        if number is None:
            number = self._event_numbers[name, row] = len(self._event_numbers) + 1
            self._event_stats[number] = self._stats(stats or {})
            shown = f"display_name: {_quoted(display)} " if display else ""
            value = f"id: {number} name: {_quoted(name)} {shown}{self._event_stats[number]}"
            self._event_names.append(f"event_metadata {{ key: {number} value {{ {value} }} }}")
        return number

    def at(self, number: int, begin_cycles: float, end_cycles: float, stats: _Stats | None = None) -> str:
        """Return the text of an event. It repeats its kind's stats, for `ProfileData` reads only an event's own."""
        begin, end = round(begin_cycles * self._ps_per_cycle), round(end_cycles * self._ps_per_cycle)
        times = {"device_offset_ps": begin, "device_duration_ps": end - begin}
        stats_text = f"{self._stats({**times, **(stats or {})})} {self._event_stats[number]}"
        return f"events {{ metadata_id: {number} offset_ps: {begin} duration_ps: {end - begin} {stats_text} }}"

    def line(self, number: int, name: str, events: list[str]) -> None:
        """Add a line, which begins at time 0."""
        self._lines.append(f"lines {{ id: {number} name: {_quoted(name)} {' '.join(events)} }}")

    def text(self, name: str, stats: _Stats) -> str:
        """Return the text of the plane."""
        stats_text = self._stats(stats)
        names = [
            f"stat_metadata {{ key: {number} value {{ id: {number} name: {_quoted(stat)} }} }}"
            for stat, number in self._stat_numbers.items()
        ]
        return "\n".join(
            [f"planes {{ name: {_quoted(name)}", *self._lines, *self._event_names, *names, stats_text, "}"]
        )

    def _stats(self, stats: _Stats) -> str:
        return " ".join(f"stats {{ metadata_id: {self._stat(name)} {_value(stats[name])} }}" for name in stats)

    def _stat(self, name: str) -> int:
        return self._stat_numbers.setdefault(name, len(self._stat_numbers) + 1)


def _value(value: float | str) -> str:
    if isinstance(value, str):
        return f"str_value: {_quoted(value)}"
    return f"uint64_value: {value}" if isinstance(value, int) else f"double_value: {value!r}"


def _quoted(text: str) -> str:
    """Return a string of protobuf's text format: ASCII as it is, all other bytes by number."""
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{"".join(plain)}"'
