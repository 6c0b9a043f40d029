"""Products under `jit` of rows with a batch and a sequence, of which either is gathered or scattered by a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from mesh_products import PRODUCTS_ON_A_MESH
from virtual_devices import run_on_virtual_devices

SCRIPT = (
    PRODUCTS_ON_A_MESH
    + """
sizes = tuple(map(int, sys.argv[2].split(",")))
whole_rows = {"sequence": ("data", None), "batch": (None, None)}[sys.argv[3]]
rows = {"sequence": ("data", "model"), "batch": ("model", None)}[sys.argv[3]]
mesh = explicit_mesh(sizes, ("data", "model"))

def layer(x, gate, up, down, bias):
    hidden = systolic.gated_matmul(x, gate, up, out_sharding=P(*whole_rows, "model"), **options)
    return systolic.matmul(hidden, down, bias=bias, residual=x, out_sharding=P(*rows, None), **options)

def summed(x, gate, up, down, bias):
    hidden = systolic.gated_matmul(x, gate, up, out_sharding=P(*whole_rows, "model"), **options)
    return systolic.matmul(hidden, down, bias=bias, **options)  # rows of all devices, on each

def reference(residual, x, gate, up, down, bias):
    out = (jax.nn.silu(x @ gate) * (x @ up)) @ down + bias
    return out + x if residual else out

kinds = []

def kernel(sizes, chip, **options):
    kinds.append("scatter" if sizes.scatters else "gather")
    return RingChoice(by_kernel=True, reason="")

every = tuple(range(5))
arrays = normal(4, 12, 128), normal(128, 512), normal(128, 512), normal(512, 128), normal(128)
cuts = (*rows, None), (None, "model"), (None, "model"), ("model", None), ()
operands = tuple(put(array, *cut) for array, cut in zip(arrays, cuts, strict=True))
with mock.patch.object(across_chips, "chosen", kernel):
    for fn, residual, cut in ((layer, True, rows), (summed, False, whole_rows)):
        loss = lambda fn, *arrays: (fn(*arrays) ** 2).sum()
        with jax.enable_x64(True):
            wide = tuple(np.asarray(array, np.float64) for array in arrays)
            by_float64 = functools.partial(reference, residual)
            wanted = jax.jit(by_float64)(*wide)
            gradients = jax.jit(jax.grad(functools.partial(loss, by_float64), argnums=every))(*wide)
        kinds.clear()
        out = jax.jit(fn)(*operands)
        assert kinds == ["gather", "scatter"], kinds
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, P(*cut, None)), 3), out.sharding
        close(out, wanted)
        assert implementation is None or not races_found()
        if implementation is not None and fn is summed:  # interpret mode is slow
            continue
        found = jax.jit(jax.grad(functools.partial(loss, fn), argnums=every))(*operands)
        close(found, gradients)
        for gradient, operand in zip(found, operands, strict=True):
            assert gradient.sharding.is_equivalent_to(operand.sharding, gradient.ndim), gradient.sharding
        # The gradient of the hidden rows is a product of gathered rows, and that of x is scattered.
        assert fn is summed or kinds[-2:] == ["gather", "scatter"], kinds
"""
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("implementation", "sizes", "cut"),
    [
        ("xla", "2,2", "sequence"),
        pytest.param("interpret", "1,2", "sequence", marks=pytest.mark.slow),
        ("interpret", "2,2", "sequence"),
        pytest.param("interpret", "1,4", "batch", marks=pytest.mark.slow),
    ],
)
def test_values_and_gradients_are_those_of_float64(tmp_path: Path, implementation: str, sizes: str, cut: str) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, implementation, sizes, cut)
