"""The simulator on programs that the real compiler has just made."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from listing_mutations import check_damages
from simulator_listings import simulate_listings

import systolic
from systolic.bench import abstract_operands, xla_matmul
from systolic.chips import chip
from systolic.compiler import ProgramCache, WorkerPool, submit_compilation
from systolic.lessons.ladder import RUNGS
from systolic.lessons.ladder.candidates import hbm_bytes
from systolic.schedule import Tiles
from systolic.simulator import SimulatedRun, SimulationError
from systolic.simulator.reading.blocks import split_blocks
from systolic.simulator.reading.listing import parse_listing
from systolic.simulator.reading.verify import check_registers
from systolic.simulator.repeated_calls import Outcome, RepeatedCalls
from systolic.spec import MatmulSpec
from systolic.timing import target_of

CHIPS = ["v5e", "v5p", "v6e", "v7x"]
Compile = Callable[[str, Callable[..., Any], tuple[Any, ...]], Mapping[str, str]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compile]:
    cache = ProgramCache(folder=tmp_path_factory.mktemp("programs"))
    with WorkerPool() as pool:

        def compile_for(name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Mapping[str, str]:
            return submit_compilation(pool, fn, args, target_of(chip(name)), cache=cache).result().listings

        yield compile_for


def product(rung: str, spec: MatmulSpec, tiles: Tiles) -> Callable[..., Any]:
    if rung == "xla":
        return xla_matmul(spec)
    return functools.partial(RUNGS[rung].multiply, tiles=tiles, dtype_out=spec.dtype_out)


def run(compiled: Compile, name: str, rung: str, spec: MatmulSpec, tile: int = 128, **options: Any) -> SimulatedRun:
    listings = compiled(name, product(rung, spec, Tiles.cube(tile)), abstract_operands(spec))
    return simulate_listings(listings, chip(name), **options)


def matrix_cycles(spec: MatmulSpec, name: str) -> float:
    """Cycles that all matrix units together need, by arithmetic."""
    kind = {"float32": "f32", "bfloat16": "bf16", "int8": "s8"}[spec.dtype_lhs]
    machine = chip(name).machine
    rate = machine.mxu_rows_per_cycle.get(kind) or machine.mxu_rows_per_cycle["bf16"]  # v7x converts int8
    return spec.m * spec.k * spec.n / (machine.mxu_rows * machine.mxu_columns * rate)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", CHIPS)
def test_the_work_of_the_matrix_units_is_the_arithmetic(compiled: Compile, name: str, dtype: str) -> None:
    spec = MatmulSpec.of(512, 512, 512, dtype)
    # Tiles no smaller than a matrix unit: a smaller one leaves part of it idle.
    for rung in ("v3", "v5", "xla"):
        done = run(compiled, name, rung, spec, tile=256)
        busy = sum(core.matrix_busy_cycles for core in done.cores)
        assert busy == matrix_cycles(spec, name)
        assert done.cycles * done.matrix_units * len(done.cores) >= busy


@pytest.mark.sampled
@pytest.mark.parametrize("rung", ["v3", "v5"])
@pytest.mark.parametrize("name", CHIPS)
def test_hbm_traffic_is_what_the_grid_says(compiled: Compile, name: str, rung: str) -> None:
    spec = MatmulSpec.of(512, 512, 512, "bfloat16")
    done = run(compiled, name, rung, spec)
    moved = done.hbm_read_bytes + done.hbm_written_bytes
    expected = hbm_bytes(spec, Tiles.cube(128))
    if name == "v7x":  # XLA brings these small operands into VMEM first, once
        assert spec.least_hbm_bytes <= moved <= expected
    elif name == "v5p" and rung == "v5":  # the split starts each core anew: it may fetch a block again
        assert expected <= moved <= 1.1 * expected
    else:
        assert moved == expected


def test_cores_of_a_v5p_share_the_work(compiled: Compile) -> None:
    spec = MatmulSpec.of(1024, 1024, 1024, "bfloat16")
    first, second = run(compiled, "v5p", "v5", spec).cores
    assert first.matrix_busy_cycles == second.matrix_busy_cycles > 0
    assert first.hbm_written_bytes == second.hbm_written_bytes == spec.out_bytes // 2
    alone, idle = run(compiled, "v5p", "v3", spec).cores
    assert (alone.hbm_written_bytes, idle.matrix_busy_cycles) == (spec.out_bytes, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [1024, 8192])
def test_xla_on_both_cores_of_a_v5p(compiled: Compile, size: int) -> None:
    spec = MatmulSpec.of(size, size, size, "bfloat16")
    done = run(compiled, "v5p", "xla", spec)
    assert sum(core.matrix_busy_cycles for core in done.cores) >= matrix_cycles(spec, "v5p")
    assert sum(core.hbm_written_bytes for core in done.cores) == spec.out_bytes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CHIPS)
def test_xla_moves_no_less_than_it_must(compiled: Compile, name: str) -> None:
    spec = MatmulSpec.of(1024, 1024, 1024, "float32")
    done = run(compiled, name, "xla", spec)
    prefetched = spec.lhs_bytes if done.prefetch_cycles else 0
    assert done.hbm_read_bytes + done.hbm_written_bytes >= spec.least_hbm_bytes - prefetched
    assert [op.name for op in done.cores[0].ops]


@pytest.mark.sampled
@pytest.mark.parametrize("rung", ["v3", "xla"])
@pytest.mark.parametrize("name", ["v5e", "v5p", "v7x"])
def test_looking_rounds_up_changes_nothing(compiled: Compile, name: str, rung: str) -> None:
    spec = MatmulSpec.of(1024, 1024, 1024, "float32")
    assert run(compiled, name, rung, spec) == run(compiled, name, rung, spec, remember=False)


def layers(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Perceptrons in a loop, and a number."""

    def layer(x: jax.Array, its: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        return x + jax.nn.silu(x @ its["up"]) @ its["down"], None

    return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, weights)[0].astype(jnp.float32))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["v5e", "v5p", "v6e"])
def test_looking_calls_up_changes_nothing(compiled: Compile, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    weights = {"up": shape((12, 256, 1024)), "down": shape((12, 1024, 256))}
    listings = compiled(name, jax.grad(layers), (weights, shape((256, 256))))
    found: list[bool] = []
    find = RepeatedCalls.find

    def noted(self: RepeatedCalls, *args: Any) -> tuple[Outcome, ...] | None:
        found.append((outcomes := find(self, *args)) is not None)
        return outcomes

    monkeypatch.setattr(RepeatedCalls, "find", noted)
    run = simulate_listings(listings, chip(name), spans=50)
    assert sum(found) > len(found) / 2
    assert run == simulate_listings(listings, chip(name), spans=50, remember=False)


@pytest.mark.exhaustive
def test_a_quarter_of_a_million_steps(compiled: Compile) -> None:
    spec = MatmulSpec.of(8192, 8192, 8192, "float32")
    done = run(compiled, "v5e", "v3", spec)
    assert done.hbm_read_bytes + done.hbm_written_bytes == hbm_bytes(spec, Tiles.cube(128))


def attention(q, k, v):
    import jax
    import jax.numpy as jnp

    weights = jax.nn.softmax((q @ k.T).astype(jnp.float32), axis=-1)
    return weights.astype(v.dtype) @ v


def perceptron(x, first, second):
    import jax

    return jax.nn.gelu(x @ first) @ second


# libtpu takes a minute for v7x.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*CHIPS[:-1], pytest.param(CHIPS[-1], marks=pytest.mark.slow)])
def test_programs_of_many_operations(compiled: Compile, name: str) -> None:
    import jax
    import jax.numpy as jnp

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    machine = chip(name).machine
    for fn, args in (
        (attention, (array(1024, 128),) * 3),
        (perceptron, (array(512, 1024), array(1024, 4096), array(4096, 1024))),
        (jnp.sort, (jax.ShapeDtypeStruct((1024,), jnp.float32),)),
    ):
        listings = compiled(name, fn, args)
        for part, text in listings.items():
            program = parse_listing(part, text)
            check_registers(program, split_blocks(program, machine.branch_delay_slots))
        assert simulate_listings(listings, chip(name)).cycles > 0


def test_a_branch_shadow_misread_is_found(compiled: Compile) -> None:
    spec = MatmulSpec.of(512, 512, 512, "bfloat16")
    listings = compiled("v7x", product("v5", spec, Tiles.cube(128)), abstract_operands(spec))
    (kernel,) = (text for part, text in listings.items() if part != "TLP")
    program = parse_listing("kernel", kernel)
    check_registers(program, split_blocks(program, 6))
    with pytest.raises(SimulationError):
        check_registers(program, split_blocks(program, 4))


def test_the_same_in_another_process(compiled: Compile, tmp_path: Any) -> None:
    spec = MatmulSpec.of(512, 512, 512, "bfloat16")
    listings = compiled("v6e", product("v5", spec, Tiles.cube(128)), abstract_operands(spec))
    for part, text in listings.items():
        (tmp_path / part).write_text(text)
    code = (
        "import pathlib, sys; from systolic.chips import chip; from systolic.simulator import prepare_listings;"
        "parts = {path.name: path.read_text() for path in pathlib.Path(sys.argv[1]).iterdir()};"
        "print(prepare_listings(parts, chip('v6e')).run(chip('v6e')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(simulate_listings(listings, chip("v6e")))


@pytest.fixture(scope="module")
def small_listing(compiled: Compile) -> Mapping[str, str]:
    spec = MatmulSpec.of(128, 256, 128, "bfloat16")
    return compiled("v5e", product("v5", spec, Tiles.cube(128)), abstract_operands(spec))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 300, 60))
def test_a_garbled_listing_is_an_error_or_a_result(small_listing: Mapping[str, str], start: int) -> None:
    check_damages(small_listing, chip("v5e"), range(start, start + 60))


def repeated(x: jax.Array, *, times: int) -> jax.Array:
    return jnp.concatenate([x] * times)


def test_keyword_arguments_are_static() -> None:
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    run = systolic.simulate(repeated, x, chip="v5e", times=3)
    bound = systolic.simulate(functools.partial(repeated, times=3), x, chip="v5e")
    assert run.cycles == bound.cycles
    assert all(op.name in str(run) for op in run.cores[0].ops)
