"""Every constant of a machine counts when a program runs again, or its value is refused."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from saved_programs import everything
from simulator_listings import V5E

from systolic.chips import MachineModel
from systolic.chips.constants import ConstantsError
from systolic.simulator import SimulatedRun, SimulationError
from systolic.timing import Program
from systolic.tuning.profiling import without_copies

FIXED = ("mxu_count", "mxu_rows", "mxu_columns", "branch_delay_slots")


def came_of(program: Program, machine: MachineModel) -> SimulatedRun | str:
    try:
        return program.run(machine=machine)
    except SimulationError as error:  # an address that counts other bytes leads to other words
        return str(error)


@pytest.mark.parametrize("name", [field.name for field in fields(MachineModel)])
def test_every_constant_counts_or_is_refused(name: str) -> None:
    # HBM that is slow in every cycle after a busy one; on chips the turns take milliseconds.
    cycle_s = 1 / V5E.machine.clock_hz
    turns = {"hbm_slow_period_s": cycle_s, "hbm_slow_load": 0.5, "hbm_slow_s": cycle_s, "hbm_slow_share": 0.25}
    slowing = replace(V5E.machine, **turns)
    program = everything(replace(V5E, machine=slowing))
    value = getattr(slowing, name)
    other = {kind: 2 * rate for kind, rate in value.items()} if isinstance(value, dict) else 2 * value or 7
    machine = replace(slowing, **{name: other})
    if name in FIXED:
        with pytest.raises(ConstantsError, match=f"{name}="):
            program.run(machine=machine)
        return
    found = came_of(program, machine)
    assert found != program.run()
    if isinstance(found, SimulatedRun):
        # It is the same as preparing for such a chip from the beginning.
        assert found == everything(replace(V5E, machine=machine)).run()


def test_a_rate_decides_how_long_the_matrix_units_are_busy() -> None:
    rates = {kind: rate / 2 for kind, rate in V5E.machine.mxu_rows_per_cycle.items()}
    slower = everything().run(machine=replace(V5E.machine, mxu_rows_per_cycle=rates))
    assert slower.cores[0].matrix_busy_cycles == 2 * everything().run().cores[0].matrix_busy_cycles


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hbm_bytes_per_s", 0.0),
        ("hbm_bytes_per_s", float("nan")),
        ("clock_hz", -1e9),
        ("clock_hz", "fast"),
        ("dma_latency_cycles", -1),
        ("dma_latency_cycles", 0.5),
        ("hbm_slow_share", 0.0),
        ("granule_bytes", 0),
        ("mxu_rows_per_cycle", {"bf16": 1.0}),  # other types had rates
        ("mxu_rows_per_cycle", {"f32": 1.0, "bf16": 0.0, "s8": 1.0, "u8": 1.0, "f8": 1.0, "s4": 1.0, "u4": 1.0}),
    ],
)
def test_a_value_that_no_hardware_has(name: str, value: object) -> None:
    with pytest.raises(ConstantsError, match=name):
        everything().run(machine=replace(V5E.machine, **{name: value}))  # pyright: ignore[reportArgumentType]


def test_a_chip_whose_copies_take_no_time() -> None:
    """Profiles of tiles are made with it."""
    assert everything().run(machine=without_copies(V5E).machine).cores[0].copy_stall_cycles < 100


def test_a_chip_is_no_machine_model() -> None:
    with pytest.raises(ConstantsError, match="is not a `MachineModel`"):
        everything().run(machine=V5E)  # pyright: ignore[reportArgumentType]
