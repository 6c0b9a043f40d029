"""The time of a ring's schedule by arithmetic, and the fastest schedule.

All devices do the same at the same time, so one device's timeline is enough: the copies of a direction leave one after
another, what arrives was sent one hop earlier, and products wait for what they multiply, or what they are added to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.ops.collective.schedule import RingSchedule, row_multiple
from systolic.schedule import total_bytes
from systolic.schedule.legality import LANES, IllegalTilesError, Violation, legal_sides
from systolic.schedule.sizes import padded
from systolic.schedule.vmem import MIB
from systolic.spec import dtype_bytes

_DTYPES = ("bfloat16", "float32")
_MAX_BLOCK = 2048  # columns multiplied at once: a block's sum of 512 rows takes 4 MiB
_MAX_PASS_ROWS = 1024
# Rows' worth of time that a pass takes in addition for its weights, which the matrix unit loads. Simulated on v6e: 64
# rows reach 0.46 of the peak (facts of the prototypes).
_WEIGHT_ROWS = 75
# Of the VMEM for the compiler: values between a product and its store, seen with libtpu 0.0.42.1.
_COMPILER_BYTES = 3 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSizes:
    """Sizes of a product on one device.

    Attributes:
      rows: of a chunk: those of x before all-gather, of the result after reduce-scatter.
      columns: of w.
      scatters: True for matmul × reduce-scatter.
    """

    devices: int
    rows: int
    k: int
    columns: int
    dtype: str
    dtype_out: str
    scatters: bool

    @property
    def padded_rows(self) -> int:
        return padded(max(self.rows, 1), 2 * max(row_multiple(self.dtype), row_multiple(self.dtype_out)))


def fastest_schedule(sizes: RingSizes, chip: Chip) -> RingSchedule:
    """Return the schedule that takes least time by arithmetic.

    Raises:
      IllegalTilesError: there is none, with the reason.
    """
    violations = _violations(sizes, chip)
    schedules = [] if violations else list(_schedules(sizes, chip))
    if not violations and not schedules:
        need = MIB + sizes.k * sizes.columns * dtype_bytes(sizes.dtype)
        violations.append(
            Violation(
                rule="VMEM",
                value=f"w alone is {need // MIB} MiB",
                limit=f"w, x and what arrives must fit in {usable_bytes(chip) // MIB} MiB of VMEM",
                fix="cut w over more devices",
            )
        )
    if violations:
        raise IllegalTilesError("a product on a ring", violations)
    return min(schedules, key=lambda schedule: schedule_us(schedule, sizes, chip))


def usable_bytes(chip: Chip) -> int:
    """Return the bytes of VMEM that the buffers of a schedule may take."""
    return chip.usable_vmem_bytes_per_core - _COMPILER_BYTES


def vmem_limit_bytes(schedule: RingSchedule, sizes: RingSizes, chip: Chip) -> int:
    """Return the limit to ask the compiler for."""
    need = vmem_bytes(schedule, sizes) + _COMPILER_BYTES
    return min(max(need, chip.scoped_vmem_bytes), chip.usable_vmem_bytes_per_core)


def vmem_bytes(schedule: RingSchedule, sizes: RingSizes) -> int:
    buffers_of = schedule.scatter_buffers if sizes.scatters else schedule.gather_buffers
    value_bytes = schedule.pass_rows * schedule.block * dtype_bytes("float32")  # the sum of a block
    return total_bytes(buffers_of(sizes.k, sizes.dtype_out)) + value_bytes


def schedule_us(schedule: RingSchedule, sizes: RingSizes, chip: Chip) -> float:
    """Return the modeled time of a schedule."""
    assert chip.links is not None  # a rule of `_violations`
    row_us = 2 * sizes.k * sizes.columns / chip.peak_ops_per_s(sizes.dtype) * 1e6
    pass_us = (schedule.pass_rows + _WEIGHT_ROWS) * row_us
    weights_us = sizes.k * sizes.columns * dtype_bytes(sizes.dtype) / chip.hbm_bytes_per_s * 1e6
    sent_width = sizes.columns * dtype_bytes(sizes.dtype_out) if sizes.scatters else sizes.k * dtype_bytes(sizes.dtype)
    piece_us = schedule.piece_rows * sent_width / chip.links.bytes_per_s * 1e6
    hop_us = chip.links.hop_s * 1e6
    arrivals: list[float] = []
    link_free, now = hop_us, hop_us

    def send(ready: float) -> None:
        nonlocal link_free
        link_free = max(link_free, ready) + piece_us
        arrivals.append(link_free + hop_us)

    if not sizes.scatters:
        for _ in range(min(schedule.pieces, schedule.steps)):
            send(hop_us)
    for group in range(schedule.groups):
        slots = range(group * schedule.slots_at_once, (group + 1) * schedule.slots_at_once)
        if not sizes.scatters:
            for step in (slot - schedule.own_slots for slot in slots if slot >= schedule.own_slots):
                now = max(now, arrivals[step])
                if len(arrivals) < schedule.steps:
                    send(now)
        now += max(pass_us, weights_us) if group == 0 else pass_us
        if sizes.scatters:
            for slot in slots:
                if schedule.pieces <= slot < schedule.steps:
                    now = max(now, arrivals[slot - schedule.pieces])
                if slot < schedule.steps:
                    send(now)
    return max(now, arrivals[-1])


def _schedules(sizes: RingSizes, chip: Chip) -> Iterator[RingSchedule]:
    """Yield all legal schedules."""
    blocks = [block for block in legal_sides(sizes.columns, LANES) if block <= _MAX_BLOCK and block % LANES == 0]
    for pieces in (2, 4):
        for at_once in range(1, sizes.devices * pieces // 2 + 1):
            for block in blocks:
                try:
                    schedule = RingSchedule(
                        devices=sizes.devices,
                        rows=sizes.padded_rows,
                        columns=sizes.columns,
                        dtype=sizes.dtype,
                        pieces=pieces,
                        slots_at_once=at_once,
                        block=block,
                    )
                except IllegalTilesError:
                    continue
                fits = vmem_bytes(schedule, sizes) <= usable_bytes(chip)
                if fits and (at_once == 1 or schedule.pass_rows <= _MAX_PASS_ROWS):
                    yield schedule


def _violations(sizes: RingSizes, chip: Chip) -> list[Violation]:
    """Return the reasons for which no schedule is legal, whatever its pieces and blocks are."""
    violations: list[Violation] = []

    def refuse(rule: str, value: str, limit: str, fix: str) -> None:
        violations.append(Violation(rule=rule, value=value, limit=limit, fix=fix))

    if sizes.devices < 2:
        refuse("ring", "one device", "there is nothing to send", "use `systolic.matmul`")
    if chip.links is None:
        refuse("links", chip.name, "the links between its chips are not known", "use another chip")
    for dtype in dict.fromkeys((sizes.dtype, sizes.dtype_out)):
        if dtype not in _DTYPES:
            refuse("dtype", dtype, f"the kernel takes {' and '.join(_DTYPES)}", "cast it")
    for name, size in (("k", sizes.k), ("columns", sizes.columns)):
        if size % LANES or not size:
            refuse(name, f"{name}={size}", f"a register has {LANES} lanes", f"pad to a multiple of {LANES}")
    return violations

