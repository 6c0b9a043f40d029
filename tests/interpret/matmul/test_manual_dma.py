"""The kernel that starts its copies by itself, in TPU interpret mode: order of copies, races, uninitialised memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import V6E
from systolic.kernels.epilogue import Functions
from systolic.ops.matmul.kernel import manual_dma
from systolic.ops.matmul.kernel.launch import MatmulKernel
from systolic.ops.matmul.kernel.manual_dma import manual_dma_matmul
from systolic.schedule import KernelConfig, Tiles, can_run_manually
from systolic.spec import PLAIN, Epilogue, FusedOperand, MatmulSpec, Operands, Prologue

Fn = Callable[..., Any]
CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
M, K, N = 384, 512, 384


def described(array: np.ndarray) -> FusedOperand:
    return FusedOperand(rows=array.shape[0] > 1, columns=array.shape[1] > 1, dtype="float32")


def config(tiles: tuple[int, int, int], subtiles: tuple[int, int], **rest: Any) -> KernelConfig:
    tile_m, tile_k, tile_n = tiles
    return KernelConfig(
        tiles=Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n),
        subtile_m=subtiles[0],
        subtile_n=subtiles[1],
        pipeline="manual",
        **rest,
    )


def check(
    how: KernelConfig,
    *,
    dtype: str = "float32",
    transposes: tuple[bool, bool] = (False, False),
    args: tuple[Sequence[np.ndarray], Sequence[np.ndarray]] = ((), ()),
    epilogue: Epilogue = PLAIN,
    around: dict[str, np.ndarray] | None = None,
    expected: Callable[[np.ndarray], Sequence[np.ndarray]] = lambda total: [total],
    fns: tuple[Fn | None, Fn | None] = (None, None),
    multiplied: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul,
    interpret: pltpu.InterpretParams = CAREFUL,
) -> None:
    """Runs the kernel on seeded normal operands and compares every output with float64."""
    around = around or {}

    def prologue(fn: Fn | None, arrays: Sequence[np.ndarray]) -> Prologue | None:
        return Prologue(dtype=dtype, operands=tuple(map(described, arrays))) if fn is not None else None

    random = np.random.default_rng(0)
    lhs = random.standard_normal((M, K)).astype(np.float32).astype(dtype)
    rhs = random.standard_normal((K, N)).astype(np.float32).astype(dtype)
    spec = MatmulSpec(
        m=M,
        k=K,
        n=N,
        dtype_lhs=dtype,
        dtype_rhs=dtype,
        dtype_out="float32",
        transpose_lhs=transposes[0],
        transpose_rhs=transposes[1],
        lhs_prologue=prologue(fns[0], args[0]),
        rhs_prologue=prologue(fns[1], args[1]),
        epilogue=dataclasses.replace(epilogue, **{name: described(array) for name, array in around.items()}),
    )
    assert can_run_manually(spec, how.tiles)
    operands = Operands(
        lhs=lhs.T if transposes[0] else lhs,
        rhs=rhs.T if transposes[1] else rhs,
        lhs_args=tuple(args[0]),
        rhs_args=tuple(args[1]),
        **around,
    )
    activation = jax.nn.relu if epilogue.activation else None
    kernel = MatmulKernel(
        spec=spec,
        functions=Functions(lhs=fns[0], rhs=fns[1], activation=activation),
        config=how,
        chip=V6E,
        vmem_limit_bytes=2**24,
        interpret=interpret,
    )
    outs = jax.jit(lambda operands: manual_dma_matmul(operands, kernel))(operands.map(jnp.asarray))
    wanted = expected(multiplied(lhs.astype(np.float64), rhs.astype(np.float64)))
    assert len(outs) == len(wanted) == len(spec.dtypes_out)
    for out, exact in zip(outs, wanted, strict=True):
        # Sums of 512 products of deviation √512 in float32: 1e-3 is ten times what they are off by, and a hundredth of
        # what one lost product makes.
        np.testing.assert_allclose(np.asarray(out, np.float64), exact, atol=1e-3 * max(1.0, np.abs(exact).max() / 60))


ORDERS = [
    config((128, 256, 128), (128, 128), fill_chunks=1),
    config((128, 256, 128), (64, 128), fill_chunks=2, num_stages=3, grid_order="n"),
    config((128, 512, 128), (64, 128), fill_chunks=4, num_stages=3),
    config((128, 512, 128), (128, 128), fill_chunks=1, num_stages=2, grid_order="n"),
    config((384, 128, 128), (128, 128), fill_chunks=1, num_stages=3),
    config((128, 512, 384), (128, 128), fill_chunks=2),
    config((384, 512, 384), (192, 128), fill_chunks=4),  # one step
    config((384, 256, 384), (128, 384), fill_chunks=2, num_stages=3),  # one block of the output
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ORDERS, ids=str)
def test_every_order(how: KernelConfig, capfd: pytest.CaptureFixture[str]) -> None:
    check(how)
    assert "race" not in capfd.readouterr().out.lower()


@pytest.mark.exhaustive
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_the_order_in_which_copies_end(seed: int) -> None:
    params = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", random_seed=seed)
    for mode in ("eager", "on_wait"):
        check(
            config((128, 256, 128), (128, 128), fill_chunks=2, num_stages=3),
            interpret=pltpu.InterpretParams(
                detect_races=True, uninitialized_memory="nan", random_seed=seed, dma_execution_mode=mode
            ),
        )
    check(config((128, 512, 128), (64, 128), fill_chunks=4, num_stages=3, grid_order="n"), interpret=params)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("transposes", [(True, False), (False, True), (True, True)])
def test_pieces_of_operands_that_are_stored_transposed(transposes: tuple[bool, bool]) -> None:
    check(config((128, 256, 128), (128, 128), fill_chunks=2, num_stages=3), transposes=transposes, dtype="bfloat16")


@pytest.mark.sampled(3)
@pytest.mark.paired
@pytest.mark.parametrize(
    "how",
    [
        config((128, 256, 128), (64, 128), fill_chunks=2, num_stages=3, grid_order="n"),
        config((128, 512, 128), (128, 128), fill_chunks=1, num_stages=2),
        config((384, 512, 128), (384, 128), fill_chunks=4, num_stages=3),
        config((384, 512, 384), (192, 128), fill_chunks=2),  # one step
    ],
    ids=str,
)
@pytest.mark.parametrize("op_count", [1, 5])
@pytest.mark.parametrize("small", [0, 1024])
@pytest.mark.parametrize("scale", ["column", "element"])
def test_epilogue_operands_and_two_outputs(
    how: KernelConfig,
    op_count: int,
    small: int,
    scale: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A row, a column and a matrix by blocks, an element; both ways of finishing a sum, and of small arrays."""
    monkeypatch.setattr(manual_dma, "SMALL_ELEMENTS", small)
    random = np.random.default_rng(1)
    row, column = random.standard_normal((1, N), np.float32), random.standard_normal((M, 1), np.float32)
    matrix = random.standard_normal((M, N), np.float32)
    factor = column if scale == "column" else np.full((1, 1), 0.5, np.float32)
    check(
        how,
        epilogue=Epilogue(activation="relu", op_count=op_count, kept_sum="float32"),
        around={"bias": row, "residual": matrix, "scale": factor},
        expected=lambda total: [(np.maximum(total + row, 0) + matrix) * factor, total + row],
    )
    assert "race" not in capfd.readouterr().out.lower()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("small", [0, 1024])
@pytest.mark.parametrize("how", ORDERS, ids=str)
def test_functions_of_operands_on_the_way(
    how: KernelConfig, small: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A matrix, a column and a row beside lhs, a column and a row beside rhs: each subtile takes its own part."""
    monkeypatch.setattr(manual_dma, "SMALL_ELEMENTS", small)
    random = np.random.default_rng(2)
    arrays = {
        "mask": (random.random((M, K)) < 0.7).astype(np.float32),
        "rows": random.standard_normal((M, 1), np.float32),
        "along_k": random.standard_normal((1, K), np.float32),
        "scale": random.standard_normal((K, 1), np.float32),
        "columns": random.standard_normal((1, N), np.float32),
    }

    def of_lhs(block: Any, mask: Any, rows: Any, along_k: Any) -> Any:
        return block * mask * rows + along_k

    def of_rhs(block: Any, scale: Any, columns: Any) -> Any:
        return block * columns + scale

    check(
        how,
        args=(
            [arrays[name] for name in ("mask", "rows", "along_k")],
            [arrays[name] for name in ("scale", "columns")],
        ),
        fns=(of_lhs, of_rhs),
        multiplied=lambda lhs, rhs: (
            of_lhs(lhs, arrays["mask"], arrays["rows"], arrays["along_k"])
            @ of_rhs(rhs, arrays["scale"], arrays["columns"])
        ),
    )
    assert "race" not in capfd.readouterr().out.lower()


def test_what_it_does_not_take() -> None:
    even = Tiles(tile_m=128, tile_k=256, tile_n=128)
    spec = MatmulSpec.of(M, K, N, "float32")
    assert can_run_manually(spec, even)
    assert not can_run_manually(MatmulSpec.of(M, K, N + 1, "float32"), even)
    assert not can_run_manually(MatmulSpec.of(M, K + 8, N, "float32"), even)
    assert not can_run_manually(dataclasses.replace(spec, batch=2), even)
    cheap, expensive = (Prologue(dtype="bfloat16", op_count=count) for count in (2, 40))
    assert can_run_manually(dataclasses.replace(spec, lhs_prologue=cheap), even)
    assert not can_run_manually(dataclasses.replace(spec, lhs_prologue=expensive), even)
