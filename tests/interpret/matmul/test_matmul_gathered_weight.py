"""Products under `jit` whose weight is cut over the axis of the rows, as FSDP cuts it, on virtual devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from mesh_products import PRODUCTS_ON_A_MESH
from virtual_devices import run_on_virtual_devices

SCRIPT = (
    PRODUCTS_ON_A_MESH
    + """
from systolic.ops.collective.sizes import WeightSizes
names, sizes = sys.argv[2].split(","), tuple(map(int, sys.argv[3].split(",")))
mesh = explicit_mesh(sizes, names)
MODEL = names[1] if len(names) > 1 else None

def by_k(x, gate, up, bias):
    return systolic.gated_matmul(x, gate, up, **options) + systolic.matmul(x, gate, bias=bias, **options)

def by_n(x, gate, up, bias):
    cut = P("data", MODEL)
    hidden = systolic.matmul(x, gate, bias=bias, activation="silu", out_sharding=cut, **options)
    return hidden + systolic.matmul(x, up, residual=hidden, **options)

def reference_by_k(x, gate, up, bias):
    return jax.nn.silu(x @ gate) * (x @ up) + x @ gate + bias

def reference_by_n(x, gate, up, bias):
    return 2 * jax.nn.silu(x @ gate + bias) + x @ up

kinds = []

def kernel(sizes, chip):
    is_ours = isinstance(sizes, WeightSizes) and not (sizes.cut == "k" and sizes.transpose_rhs)
    kinds.append(f"{sizes.cut}{sizes.transpose_rhs:d}" if is_ours else "other")
    return RingChoice(by_kernel=is_ours, reason="")

columns = 256 * (sizes[0] * (sizes[1] if MODEL else 1))
k = 256 * sizes[0]
arrays = normal(5 * sizes[0], k), normal(k, columns), normal(k, columns), normal(columns)
both = (MODEL, "data") if MODEL else "data"
cases = (by_k, reference_by_k, ("data", MODEL), ["k0", "k0"]), (by_n, reference_by_n, (None, both), ["n0", "n0"])
with mock.patch.object(across_chips, "chosen", kernel):
    for layer, reference, weight, forward in cases:
        cuts = ("data",), weight, weight, (MODEL,)
        operands = tuple(put(array, *cut) for array, cut in zip(arrays, cuts, strict=True))
        loss = lambda fn, *arrays: (fn(*arrays) ** 2).sum()
        with jax.enable_x64(True):
            wide = tuple(np.asarray(array, np.float64) for array in arrays)
            wanted = jax.jit(reference)(*wide)
            gradients = jax.jit(jax.grad(functools.partial(loss, reference), argnums=(0, 1, 2, 3)))(*wide)
        kinds.clear()
        out = jax.jit(layer)(*operands)
        assert kinds == forward, kinds
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("data", MODEL)), 2), out.sharding
        close(out, wanted)
        assert implementation is None or not races_found()
        if implementation is None or layer is by_k:  # interpret mode is slow
            found = jax.jit(jax.grad(functools.partial(loss, layer), argnums=(0, 1, 2, 3)))(*operands)
            close(found, gradients)
            # Without another axis the gradient of x multiplies by a gathered weight too: by its transpose.
            assert MODEL or layer is by_n or "n1" in kinds, kinds
            for gradient, operand in zip(found, operands, strict=True):
                assert gradient.sharding.is_equivalent_to(operand.sharding, gradient.ndim), gradient.sharding
        assert implementation is None or not races_found()
"""
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("implementation", "axes", "sizes"),
    [
        ("xla", "data", "4"),
        pytest.param("interpret", "data", "2", marks=pytest.mark.slow),
        ("interpret", "data,model", "2,2"),
    ],
)
def test_values_and_gradients_are_those_of_float64(tmp_path: Path, implementation: str, axes: str, sizes: str) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, implementation, axes, sizes)
