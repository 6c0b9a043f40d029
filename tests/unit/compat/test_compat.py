"""Differences between versions of JAX, with the installed version."""

from __future__ import annotations

import logging
import sys
import threading

import jax
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh

from systolic.compat import (
    abstract_mesh_in_all_threads,
    attached_tpu_chips,
    interpret_params,
    interpreter_reports,
    tensorcore_mesh,
)


def device_kinds() -> list[str | None]:
    """In this thread and in one that has just begun."""
    found: list[str | None] = []

    def look() -> None:
        device = jax.sharding.get_abstract_mesh().abstract_device
        found.append(device.device_kind if device is not None else None)

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


def mesh(kind: str, cores: int = 1) -> AbstractMesh:
    return AbstractMesh((), (), abstract_device=AbstractDevice(device_kind=kind, num_cores=cores, platform="tpu"))


def test_a_mesh_is_that_of_every_thread_and_no_longer_afterwards() -> None:
    with abstract_mesh_in_all_threads(mesh("TPU v5")):
        with abstract_mesh_in_all_threads(mesh("TPU v6 lite")):
            assert device_kinds() == ["TPU v6 lite", "TPU v6 lite"]
        assert device_kinds() == ["TPU v5", "TPU v5"]
    assert device_kinds() == [None, None]
    with pytest.raises(KeyError), abstract_mesh_in_all_threads(mesh("TPU v5")):
        raise KeyError
    assert device_kinds() == [None, None]


def test_a_mesh_of_cpus_is_taken_for_one_of_the_device() -> None:
    """Make a mesh as `jax.shard_map` sets it on virtual devices."""
    cpus = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice(device_kind="cpu", num_cores=1, platform="cpu"))
    for kind, generation in (("TPU v5", 5), ("TPU v6 lite", 6)):
        with abstract_mesh_in_all_threads(mesh(kind)), jax.sharding.use_abstract_mesh(cpus):
            assert pltpu.get_tpu_info().generation == generation
    with jax.sharding.use_abstract_mesh(cpus), pytest.raises(ValueError, match="Unsupported TPU device kind: cpu"):
        pltpu.get_tpu_info()


def test_a_mesh_of_cores_has_as_many_as_asked_for_or_all() -> None:
    assert tensorcore_mesh("core", num_cores=2).shape == {"core": 2}
    with abstract_mesh_in_all_threads(mesh("TPU v5", cores=2)):
        assert tensorcore_mesh("core").shape == {"core": 2}


def test_interpret_mode_takes_the_options_and_goes_on_after_a_race() -> None:
    params = interpret_params(detect_races=True, random_seed=3)
    assert (params.detect_races, params.random_seed) == (True, 3)
    assert getattr(params, "on_race", "warn") == "warn"


def test_what_interpret_mode_prints_and_logs_is_collected(capfd: pytest.CaptureFixture[str]) -> None:
    handlers = list(logging.getLogger().handlers)
    with interpreter_reports() as reports:
        sys.stdout.write("printed\n")
        logging.warning("RACE DETECTED\n  read of something")
        logging.getLogger("jax._src.pallas").warning("RACE DETECTED\n  write of something")
        logging.getLogger("other").warning("of somebody else")
    text = reports.getvalue()
    assert text == "printed\nRACE DETECTED\n  read of something\nRACE DETECTED\n  write of something\n"
    assert logging.getLogger().handlers == handlers
    assert "RACE" not in capfd.readouterr().out


def test_attached_chips_are_counted_without_jax_starting_them() -> None:
    assert attached_tpu_chips() >= 0
