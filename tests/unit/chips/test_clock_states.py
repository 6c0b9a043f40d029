"""Clock states and compiler flags: a chip in another state is another chip, and carries the flag that asks for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from systolic.chips import (
    CHIPS,
    V5E,
    V6E,
    V7X,
    Chip,
    ChipNameError,
    FlagError,
    UnknownChipError,
    chip,
    chip_names,
    register,
    with_flags,
)
from systolic.cost.profile import Kind
from systolic.spec import MatmulSpec
from systolic.timing import target_of

HIGHEST = chip("v7x@p7")
VMEM = {"xla_tpu_scoped_vmem_limit_kib": "65536"}


@pytest.mark.parametrize("known", CHIPS.values(), ids=CHIPS)
def test_the_first_state_is_that_of_the_record(known: Chip) -> None:
    for state in known.clock_states[:1]:
        assert (known.clock_state, known.machine.clock_hz) == (state, state.clock_hz)
        assert known.sources["machine.clock_hz"] == state.source
        assert known.in_clock_state(state.name) == known
    for state in known.clock_states:
        assert 0.5 * known.peak_clock_hz < state.clock_hz <= known.peak_clock_hz
        assert known.in_clock_state(state.name).clock_state == state
    assert len({state.name for state in known.clock_states}) == len(known.clock_states)


@pytest.mark.parametrize(("name", "found"), [("v7x@p3", "v7x"), ("Ironwood@P7 ", "v7x@p7"), ("tpu7x", "v7x")])
def test_a_state_stands_behind_any_name_of_its_chip(name: str, found: str) -> None:
    assert chip(name).name == found
    assert chip(found) == chip(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5e@p7", "'v5e' has no clock state 'p7'; its clock is not a setting: write v5e"),
        ("v7x@p5", "'v7x' has no clock state 'p5'; choose from v7x@p3, v7x@p7"),
        ("v7x@", "has no clock state ''"),
        ("v9@p7", "'v9@p7' is unknown"),
    ],
)
def test_a_state_that_there_is_not(name: str, said: str) -> None:
    with pytest.raises(UnknownChipError, match=said):
        chip(name)


def test_what_a_state_changes() -> None:
    same = dataclasses.replace(
        HIGHEST,
        name="v7x",
        machine=dataclasses.replace(HIGHEST.machine, clock_hz=V7X.machine.clock_hz),
        sources=V7X.sources,
        compiler_flags={},
    )
    assert same == V7X
    assert HIGHEST != V7X
    assert HIGHEST.machine.clock_hz > V7X.machine.clock_hz
    assert HIGHEST.machine.hbm_bytes_per_s == V7X.machine.hbm_bytes_per_s
    assert HIGHEST.in_clock_state("p3") == V7X


def test_the_compiler_is_told() -> None:
    assert target_of(HIGHEST).flags == {"xla_tpu_dvfs_p_state": "7"}
    assert target_of(V7X).flags == {}
    assert target_of(with_flags(HIGHEST, VMEM)).flags == {"xla_tpu_dvfs_p_state": "7", **VMEM}
    assert with_flags(HIGHEST, VMEM).given_flags == VMEM


def test_profiles_of_tiles_are_in_cycles_and_hold_for_every_state() -> None:
    spec = MatmulSpec.of(1024, 1024, 1024, "bfloat16")
    assert Kind.of(spec, HIGHEST) == Kind.of(spec, V7X)


def test_names() -> None:
    assert chip_names() == ["v4", "v5e", "v5p", "v6e", "v7x", "v7x@p7"]
    with pytest.raises(ChipNameError, match="without commas, @"):
        register(dataclasses.replace(V6E, name="v8x@p7", aliases=()))


# --- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ({"xla_tpu_scoped_vmem_limit_kib": 65536}, VMEM),
        ({"--xla_tpu_rwb_fusion": False}, {"xla_tpu_rwb_fusion": "false"}),
        ({"xla_tpu_scoped_vmem_limit_kib": 65536.0}, VMEM),
        ({"xla_tpu_some_ratio": 0.5}, {"xla_tpu_some_ratio": "0.5"}),
        ({}, {}),
    ],
)
def test_flags_are_kept_as_the_compiler_takes_them(flags: dict[str, Any], kept: dict[str, str]) -> None:
    assert with_flags(V5E, flags).compiler_flags == kept
    assert (with_flags(V5E, flags) == V5E) == (not kept)


@pytest.mark.parametrize(("limit_kib", "scoped_bytes"), [(8192, 2**23), (10**9, V5E.vmem_bytes_per_core), ("x", 2**24)])
def test_the_limit_of_scoped_vmem_is_the_flags(limit_kib: Any, scoped_bytes: int) -> None:
    assert with_flags(V5E, {"xla_tpu_scoped_vmem_limit_kib": limit_kib}).scoped_vmem_bytes == scoped_bytes


@pytest.mark.parametrize(
    ("known", "flags", "said"),
    [
        (V5E, {"vmem": 1}, "'vmem' is not a flag"),
        (V5E, {"xla_x y": 1}, "is not a flag"),
        (V5E, {"xla_tpu_x": ""}, "without spaces"),
        (V5E, {"xla_tpu_x": "a --xla_jf_dump_to=/tmp"}, "without spaces"),
        (V5E, {"xla_jf_dump_to": "/tmp"}, "leaves for systolic"),
        (V7X, {"xla_tpu_dvfs_p_state": 7}, "one of v7x@p3, v7x@p7"),
        (HIGHEST, {"xla_tpu_dvfs_p_state": 3}, "is not the clock state of v7x@p7"),
    ],
)
def test_flags_that_cannot_be_given(known: Chip, flags: dict[str, Any], said: str) -> None:
    with pytest.raises(FlagError, match=said):
        with_flags(known, flags)


def test_a_flag_that_says_what_the_name_says() -> None:
    assert with_flags(HIGHEST, {"xla_tpu_dvfs_p_state": 7}) == HIGHEST
