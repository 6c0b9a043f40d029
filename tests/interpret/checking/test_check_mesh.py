"""Kernels that copy between devices, on devices that the CPU plays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from checked import devices
from checked.public import small

import systolic
from systolic.checking import MeshError

MESH = dict(devices.AXES)
CASES = {case.name: case for case in (*devices.FAULTS, *devices.SOUND)}


def checked(case, **options) -> systolic.CheckReport:
    return systolic.check(
        case.fn, *case.args, reference=case.reference, mesh=MESH, compiles=False, seeds=(0, 1), **options
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["shifted: no barrier, no reference", "shifted: waits for the sending alone, no reference"]
)
def test_a_race_between_devices_is_found(name: str) -> None:
    report = checked(CASES[name])
    assert "race" in {found.rule for found in report.findings if found.grade == "error"}


@pytest.mark.exhaustive
def test_a_missing_barrier_names_the_copy_and_both_devices() -> None:
    report = checked(CASES["shifted: no barrier, no reference"])
    found = next(each for each in report.findings if each.rule == "race")
    assert "get_barrier_semaphore" in found.fix
    assert "device" in found.value
    assert "benchmarks/checked/devices.py" in found.where


@pytest.mark.exhaustive
def test_a_sound_ring_is_not_accused_and_compared() -> None:
    report = checked(CASES["shifted"])
    assert report.ok
    assert report.run.ran
    assert report.run.error == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_kernel_between_devices(name: str) -> None:
    case = CASES[name]
    found = {each.rule for each in checked(case).findings if each.grade == "error"}
    assert found & case.rules if case.rules else not found


@pytest.mark.slow
def test_the_gather_that_comes_with_jax_is_sound() -> None:
    report = checked(next(case for case in small.SOUND if case.mesh))
    assert report.ok
    assert report.run.ran


def test_without_a_mesh_the_finding_says_how_to_give_one() -> None:
    case = CASES["shifted"]
    report = systolic.check(case.fn, *case.args, compiles=False, run=False)
    (found,) = (each for each in report.findings if each.grade == "error")
    assert found.rule == "trace"
    assert "--mesh x=4" in found.fix


@pytest.mark.parametrize("mesh", [{}, {"x": 0}, {"x": 1000}])
def test_a_mesh_that_is_none_is_refused(mesh: dict[str, int]) -> None:
    with pytest.raises(MeshError, match="at least 1"):
        systolic.check(lambda x: x, jax.ShapeDtypeStruct((8,), jnp.float32), mesh=mesh)
