"""`systolic.matmul` through the real compiler: every kind of product on every chip that has it, and its traffic."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.chips import chip
from systolic.compiler import WorkerPool
from systolic.simulator import SimulatedRun
from systolic.timing import submit_simulation

CHIPS = ["v4", "v5e", "v5p", "v6e", "v7x"]
MAX_BUNDLES = 16_000  # of one kernel
MAX_COMPILE_S = 20
F32, BF16, INT8 = jnp.float32, jnp.bfloat16, jnp.int8
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
# Operands, precision, and the dtype that the chip has to multiply.
KINDS: dict[str, tuple[Any, Any, str | None, str]] = {
    "f32": (F32, F32, None, "float32"),
    "f32 high": (F32, F32, "high", "float32"),
    "f32 highest": (F32, F32, "highest", "float32"),
    "bf16": (BF16, BF16, None, "bfloat16"),
    "int8": (INT8, INT8, None, "int8"),
    "e4m3fn": (E4M3, E4M3, None, "float8_e4m3fn"),
    "e5m2": (E5M2, E5M2, None, "float8_e5m2"),
    "bf16 × int8": (BF16, INT8, None, "bfloat16"),
}
Measured = tuple[SimulatedRun, float]
Simulate = Callable[..., SimulatedRun]


def product(lhs: jax.Array, rhs: jax.Array, **keywords: Any) -> jax.Array:
    return systolic.matmul(lhs, rhs, **keywords)


def stack(lhs: jax.Array, rhs: jax.Array, *beside: jax.Array, **keywords: Any) -> jax.Array:
    bias, residual, scale = beside
    return systolic.matmul(lhs, rhs, bias=bias, activation="gelu", residual=residual, out_scale=scale, **keywords)


def rectified(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x.astype(F32)).astype(BF16)  # vector units have no arithmetic of 8 bits


def scaled(w: jax.Array, scale: jax.Array) -> jax.Array:
    return (w.astype(F32) * scale).astype(BF16)


def on_the_way_in(lhs: jax.Array, rhs: jax.Array, scale: jax.Array, **keywords: Any) -> jax.Array:
    return systolic.matmul(lhs, rhs, lhs_fn=rectified, rhs_fn=scaled, rhs_args=(scale,), **keywords)


def slopes(lhs: jax.Array, rhs: jax.Array, *beside: jax.Array, **keywords: Any) -> Any:
    def loss(floats: list[jax.Array]) -> jax.Array:
        given = iter(floats)
        arrays = [array if array.dtype == INT8 else next(given) for array in (lhs, rhs, *beside)]
        return (jax.checkpoint(functools.partial(stack, **keywords))(*arrays).astype(F32) ** 2).sum()

    return jax.grad(loss)([array for array in (lhs, rhs, *beside) if array.dtype != INT8])


Shapes = tuple[tuple[int, ...], ...]


def beside(m: int, n: int) -> Shapes:
    return (n,), (m, n), (n,)


# Function, shapes of lhs, of rhs and of float32 arrays beside them, what is static.
FORMS: dict[str, tuple[Callable[..., Any], Shapes, dict[str, Any]]] = {
    "plain": (product, ((512, 768), (768, 640)), {}),
    "lhs transposed": (product, ((768, 512), (768, 640)), {"transpose_lhs": True}),
    "rhs transposed": (product, ((512, 768), (640, 768)), {"transpose_rhs": True}),
    "both transposed": (product, ((768, 512), (640, 768)), {"transpose_lhs": True, "transpose_rhs": True}),
    "stack": (stack, ((512, 768), (768, 640), *beside(512, 640)), {}),
    "stack with edges": (stack, ((1000, 999), (999, 1001), *beside(1000, 1001)), {}),
    "functions": (on_the_way_in, ((512, 768), (768, 640), (640,)), {}),
    "functions, both transposed": (
        on_the_way_in, ((768, 512), (640, 768), (640, 1)), {"transpose_lhs": True, "transpose_rhs": True}),
    "functions with edges": (on_the_way_in, ((1000, 999), (999, 1001), (1001,)), {}),
    "edges": (product, ((1000, 999), (999, 1001)), {}),
    "edges, both transposed": (product, ((999, 1000), (1001, 999)), {"transpose_lhs": True, "transpose_rhs": True}),
    "large with edges": (product, ((3001, 5003), (5003, 1501)), {}),
    "one row": (product, ((1, 2048), (2048, 2048)), {}),
    "seven rows": (product, ((7, 2048), (2048, 2048)), {}),
    "sixteen rows": (product, ((16, 2048), (2048, 2048)), {"transpose_rhs": True}),
    "one column": (product, ((2048, 2048), (2048, 1)), {}),
    "k of one": (product, ((300, 1), (1, 260)), {}),
    "vector and matrix": (product, ((513,), (513, 700)), {}),
    "matrix and vector": (product, ((300, 512), (512,)), {}),
    "vectors": (product, ((513,), (513,)), {}),
    "batch": (product, ((3, 200, 300), (3, 300, 260)), {}),
    "batch of lhs": (product, ((3, 200, 300), (300, 260)), {}),
    "batch of odd rows": (product, ((3, 201, 300), (300, 260)), {}),
    "batches that cross": (product, ((2, 1, 64, 300), (1, 3, 260, 300)), {"transpose_rhs": True}),
    "one element": (product, ((1, 1), (1, 1)), {}),
    "tiny": (product, ((5, 3), (3, 7)), {}),
    "gradient": (slopes, ((512, 768), (768, 640), *beside(512, 640)), {}),
    "gradient with edges": (slopes, ((200, 499), (499, 301), *beside(200, 301)), {}),
    "gradient, rhs transposed": (slopes, ((200, 384), (256, 384), *beside(200, 256)), {"transpose_rhs": True}),
}  # fmt: skip


def takes(name: str, kind: str) -> bool:
    return KINDS[kind][3] in chip(name).dtypes


def covering() -> list[tuple[str, str, str]]:
    """Each form on two chips, each kind on every chip that has it, and each pair of form and kind on some chip in time.

    The same selection in every run: which chips and kinds a form gets is a checksum of its name.
    """
    pairs = [(name, kind) for name in CHIPS for kind in KINDS if takes(name, kind)]
    found: list[tuple[str, str, str]] = []
    for number, form in enumerate(FORMS):
        start = zlib.crc32(form.encode())
        usable = [pair for pair in pairs if not (form.startswith("gradient") and pair[1] in ("int8", "e4m3fn", "e5m2"))]
        found += [(form, *usable[(start + number + step * (len(usable) // 2 + 1)) % len(usable)]) for step in range(2)]
    forms = list(FORMS)[:-3]
    for number, pair in enumerate(pairs):
        if pair not in [case[1:] for case in found]:
            found.append((forms[number * 7 % len(forms)], *pair))
    return found


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with pytest.MonkeyPatch.context() as patch, WorkerPool(max_workers=1) as pool:
        patch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        yield pool


def submitted(pool: WorkerPool, form: str, name: str, kind: str) -> Any:
    fn, (lhs, rhs, *others), static = FORMS[form]
    dtype_lhs, dtype_rhs, precision, _ = KINDS[kind]
    arguments = [
        jax.ShapeDtypeStruct(lhs, dtype_lhs),
        jax.ShapeDtypeStruct(rhs, dtype_rhs),
        *(jax.ShapeDtypeStruct(shape, F32) for shape in others),
    ]
    fn = functools.partial(fn, precision=precision, **static)
    return submit_simulation(pool, fn, arguments, chip(name), label=f"{form}, {kind} on {name}")


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("form", "name", "kind"), covering())
def test_compiles(pool: WorkerPool, form: str, name: str, kind: str) -> None:
    measurement = submitted(pool, form, name, kind).result()
    run = measurement.run
    kernels = 4 if form.startswith("gradient") else 1  # forward, again for the checkpoint, two backward
    assert run.bundles <= MAX_BUNDLES * kernels
    assert measurement.compile_s <= MAX_COMPILE_S * kernels
    assert run.cycles > 0


def test_the_selection_covers() -> None:
    cases = covering()
    assert {form for form, _, _ in cases} == set(FORMS)
    assert {case[1:] for case in cases} == {(name, kind) for name in CHIPS for kind in KINDS if takes(name, kind)}
    assert len(cases) < 90


# --- what is not copied ----------------------------------------------------------------------------------------------

LARGE = {
    "neither": (((1024, 2048), (2048, 1536)), {}),
    "lhs": (((2048, 1024), (2048, 1536)), {"transpose_lhs": True}),
    "rhs": (((1024, 2048), (1536, 2048)), {"transpose_rhs": True}),
    "both": (((2048, 1024), (1536, 2048)), {"transpose_lhs": True, "transpose_rhs": True}),
}


def simulated(pool: WorkerPool, name: str, shapes: Shapes, dtype: Any, **static: Any) -> Any:
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    fn = functools.partial(product, **static)
    return submit_simulation(pool, fn, arguments, chip(name), label=f"{static} on {name}")


def moved(run: SimulatedRun) -> int:
    return run.hbm_read_bytes + run.hbm_written_bytes


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CHIPS)
def test_a_transposed_operand_is_not_copied(pool: WorkerPool, name: str) -> None:
    """HBM bytes are those of the plan, to a hundredth, and one kernel is all that there is."""
    jobs = {which: simulated(pool, name, shapes, BF16, **static) for which, (shapes, static) in LARGE.items()}
    for which, (_, static) in LARGE.items():
        run = jobs[which].result().run
        spec = systolic.MatmulSpec(
            m=1024, k=2048, n=1536, dtype_lhs="bfloat16", dtype_rhs="bfloat16", dtype_out="bfloat16", **static
        )
        assert moved(run) == pytest.approx(systolic.plan(spec, name).hbm_bytes, rel=0.01)
        assert [op.name for op in run.later_core.ops if op.matrix_busy_cycles] == [op.name for op in run.later_core.ops]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("rows", [1, 8])
def test_a_thin_product_reads_its_weight_once(pool: WorkerPool, name: str, rows: int) -> None:
    """A block of one row fills no register: where it lies has to be known while the kernel is traced."""
    run = simulated(pool, name, ((rows, 4096), (4096, 4096)), BF16).result().run
    weight = 2 * 4096 * 4096
    assert weight < moved(run) < 1.02 * weight
    assert run.bundles <= MAX_BUNDLES


def in_a_row(x: jax.Array, *weights: jax.Array) -> jax.Array:
    return functools.reduce(product, weights, x)


def test_activations_stay_in_vmem_between_products(pool: WorkerPool) -> None:
    """Only the last result is written to HBM."""
    shapes = ((256, 4096), (4096, 4096), (4096, 4096))
    arguments = [jax.ShapeDtypeStruct(shape, BF16) for shape in shapes]
    job: Any = submit_simulation(pool, in_a_row, arguments, chip("v6e"), label="two products in a row")
    run = job.result().run
    assert run.hbm_written_bytes == 2 * 256 * 4096


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "dtype"), [*((name, "bfloat16") for name in CHIPS), ("v5e", "float32")])
def test_an_edge_is_not_padded(pool: WorkerPool, name: str, dtype: str) -> None:
    """2000 × 3001 × 1501 moves what the arithmetic says for it, and the rest of the registers in which rows end."""
    m, k, n = 2000, 3001, 1501
    run = simulated(pool, name, ((m, k), (k, n)), jnp.dtype(dtype)).result().run
    plan = systolic.plan(systolic.MatmulSpec.of(m, k, n, dtype), name)
    assert plan.hbm_bytes * 0.97 <= moved(run) <= plan.hbm_bytes * 1.06
    assert len([op for op in run.later_core.ops if op.hbm_read_bytes > m * n]) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["v4", "v5p"])
@pytest.mark.parametrize("shapes", [((2048, 2048), (2048, 2048)), ((4, 512, 1024), (4, 1024, 512))])
def test_both_cores_work(pool: WorkerPool, name: str, shapes: Shapes) -> None:
    run = simulated(pool, name, shapes, BF16).result().run
    first, second = run.cores
    assert abs(first.cycles - second.cycles) <= 0.05 * run.cycles
    assert first.matrix_busy_cycles == pytest.approx(second.matrix_busy_cycles, rel=0.05)
