"""Planners: each has its own store and its own plans, and what is traced follows the one that is in use."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.ops.planner import planner_in_use
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import MatmulSpec
from systolic.store import StoreWarning, Subject, Trial, TrialStore

SPEC = MatmulSpec.of(2048, 2048, 2048, "bfloat16")


def config_of(side: int) -> KernelConfig:
    return KernelConfig(
        tiles=Tiles(tile_m=side, tile_k=side, tile_n=side), subtile_m=side, subtile_n=side, pipeline="manual"
    )


def keep_winner(store: TrialStore, side: int, time_us: float) -> None:
    store.keep(Subject.here(SPEC, "v6e"), Trial(config=config_of(side), status="ok", simulated_us=time_us))


@pytest.fixture
def stores(tmp_path: Path) -> list[TrialStore]:
    made = [TrialStore(tmp_path / f"{side}.sqlite") for side in (256, 512)]
    for store, side in zip(made, (256, 512), strict=True):
        keep_winner(store, side, 100.0 + side)
    return made


def traced() -> str:
    """The kernel that `matmul` is traced to now."""
    x = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return systolic.matmul(lhs, rhs, implementation="pallas", chip="v6e")

    return str(jax.make_jaxpr(product)(x, x))


def test_each_planner_has_the_winners_of_its_own_store(stores: list[TrialStore]) -> None:
    first, second = (systolic.Planner(store) for store in stores)
    for planner, side in ((first, 256), (second, 512), (first, 256)):
        with systolic.use(planner):
            made = systolic.plan(SPEC, "v6e")
        assert (made.config, made.time_us, made.provenance) == (config_of(side), 100.0 + side, "simulated")
        assert planner.plan(SPEC, "v6e") is made, "a planner keeps its plans, in use or not"
    assert systolic.plan(SPEC, "v6e").provenance == systolic.Planner(None).plan(SPEC, "v6e").provenance == "profiled"


def test_what_is_traced_follows_the_planner_in_use(stores: list[TrialStore]) -> None:
    usual = traced()
    kernels = []
    for store in stores:
        with systolic.use(store=store):
            kernels.append(traced())
    assert len({usual, *kernels}) == 3
    assert traced() == usual


def test_the_next_trace_takes_a_new_winner(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    with systolic.use(store=store) as planner:
        before = traced()
        keep_winner(store, 512, 90.0)
        assert traced() == before
        planner.forget()
        assert traced() != before


def test_the_users_own_planner_is_that_of_the_store_that_the_environment_names(
    stores: list[TrialStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = planner_in_use()
    assert own.store == TrialStore.at()
    monkeypatch.setenv("SYSTOLIC_STORE", os.fspath(stores[1].file))
    assert planner_in_use().store == stores[1]
    assert systolic.plan(SPEC, "v6e").config == config_of(512)
    monkeypatch.undo()
    assert planner_in_use() is own


def test_a_plain_call_holds_for_every_thread_until_the_next(stores: list[TrialStore]) -> None:
    found = []
    plain = systolic.use(store=stores[0])
    try:
        thread = threading.Thread(target=lambda: found.append(planner_in_use()))
        thread.start()
        thread.join()
        assert found == [plain.planner]
        with systolic.use(store=None) as none:
            assert planner_in_use() is none
        assert planner_in_use() is plain.planner
        later = systolic.use(store=str(stores[1].file))
        assert planner_in_use() is later.planner
        assert later.planner.store == stores[1]
        later.__exit__()
    finally:
        plain.__exit__()


def test_blocks_may_end_in_any_order(stores: list[TrialStore]) -> None:
    own = planner_in_use()
    first, second = (systolic.use(store=store) for store in stores)
    first.__exit__()
    assert planner_in_use() is second.planner
    second.__exit__()
    assert planner_in_use() is own


def test_a_planner_has_a_store_already() -> None:
    with pytest.raises(ValueError, match="its own store"):
        systolic.use(systolic.Planner(None), store="trials.sqlite")


@pytest.mark.parametrize("traces", [False, True])
def test_a_broken_store_warns_once_in_the_users_line(tmp_path: Path, traces: bool) -> None:
    file = tmp_path / "trials.sqlite"
    file.write_bytes(b"SQLite format 3\0" + b"?" * 5000)
    lines = []
    with systolic.use(store=file), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for side in (2048, 1024):
            if traces:
                x = jnp.zeros((side, side), jnp.bfloat16)
                jax.jit(lambda x: systolic.matmul(x, x, implementation="pallas", chip="v6e")).trace(x)
                lines.append(inspect.currentframe().f_lineno - 1)  # type: ignore[union-attr]
            else:
                systolic.plan(MatmulSpec.of(side, side, side, "bfloat16"), "v6e")
                lines.append(inspect.currentframe().f_lineno - 1)  # type: ignore[union-attr]
    assert [(one.category, one.filename, one.lineno) for one in told] == [(StoreWarning, __file__, lines[0])]
    assert "no winners" in str(told[0].message)
