"""Products under `jit` that kernels across chips compute, by the cuts of operands and results, on virtual devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from mesh_products import PRODUCTS_ON_A_MESH
from virtual_devices import run_on_virtual_devices

SCRIPT = (
    PRODUCTS_ON_A_MESH
    + """
names, sizes = sys.argv[2].split(","), tuple(map(int, sys.argv[3].split(",")))
mesh = explicit_mesh(sizes, names)
DATA = names[0] if len(names) > 1 else None
ROWS = ((DATA, "model") if DATA else "model"), None  # of the tokens, before and after an MLP

def gated(x, gate, up, down, bias):
    hidden = systolic.gated_matmul(x, gate, up, out_sharding=P(DATA, "model"), **options)
    return systolic.matmul(hidden, down, bias=bias, out_sharding=NamedSharding(mesh, P(*ROWS)), **options)

def plain(x, gate, up, down, bias):
    hidden = systolic.matmul(x, gate, activation="silu", out_sharding=P(DATA, "model"), **options)
    hidden = hidden * systolic.matmul(x, up, out_sharding=P(DATA, "model"), **options)
    return systolic.matmul(hidden, down, bias=bias, residual=x, out_sharding=P(*ROWS), **options)

def summed(x, gate, up, down, bias):
    whole = jax.sharding.reshard(x, NamedSharding(mesh, P(DATA, None)))
    hidden = systolic.gated_matmul(whole, gate, up, **options)
    return systolic.matmul(hidden, down, bias=bias, **options)  # rows of all devices, on each

def reference(residual, x, gate, up, down, bias):
    out = (jax.nn.silu(x @ gate) * (x @ up)) @ down + bias
    return out + x if residual else out

arrays = normal(56, 128), normal(128, 512), normal(128, 512), normal(512, 128), normal(128)
cuts = ROWS, (None, "model"), (None, "model"), ("model", None), ()
operands = tuple(put(array, *cut) for array, cut in zip(arrays, cuts, strict=True))
chosen = []

def kernel(sizes, chip, **options):
    chosen.append("scatter" if sizes.scatters else "gather")
    return RingChoice(by_kernel=True, reason="")

every = tuple(range(len(arrays)))
layers = ((gated, False, P(*ROWS), ["gather", "scatter"]), (plain, True, P(*ROWS), ["gather", "gather", "scatter"]))
with mock.patch.object(across_chips, "chosen", kernel):
    for layer, residual, cut, kinds in (*layers, (summed, False, P(DATA, None), ["scatter"])):
        loss = lambda fn, *arrays: (fn(*arrays) ** 2).sum()
        with jax.enable_x64(True):
            wide = tuple(np.asarray(array, np.float64) for array in arrays)
            by_float64 = functools.partial(reference, residual)
            wanted = jax.jit(by_float64)(*wide)
            gradients = jax.jit(jax.grad(functools.partial(loss, by_float64), argnums=every))(*wide)
            tangents = tuple(map(np.ones_like, wide))
            tangent = jax.jit(functools.partial(jax.jvp, by_float64))(wide, tangents)
        chosen.clear()
        out = jax.jit(layer)(*operands)
        assert chosen == kinds, chosen
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, cut), 2), out.sharding
        close(out, wanted)
        assert implementation is None or not races_found()
        if implementation is not None and layer is not gated:  # interpret mode is slow
            continue
        found = jax.jit(jax.grad(functools.partial(loss, layer), argnums=every))(*operands)
        close(found, gradients)
        for gradient, operand in zip(found, operands, strict=True):
            assert gradient.sharding.is_equivalent_to(operand.sharding, gradient.ndim), gradient.sharding
        if implementation is None:
            changes = tuple(jnp.ones_like(operand) for operand in operands)
            close(jax.jit(functools.partial(jax.jvp, layer))(operands, changes), tangent)
        assert implementation is None or not races_found()

# A cut that no kernel has: XLA gathers or scatters, and the result is cut as asked for.
batch = put(normal(4, 16, 128), None, "model", None)
multiply = jax.jit(functools.partial(systolic.matmul, out_sharding=P(None, None, "model"), **options))
out = multiply(batch, operands[1])
assert out.sharding.is_equivalent_to(NamedSharding(mesh, P(None, None, "model")), 3), out.sharding
close(out, jnp.matmul(np.asarray(batch), arrays[1], precision="highest"))
few = jax.jit(functools.partial(systolic.matmul, out_sharding=P("model", None), **options))
out = few(put(arrays[0], None, "model"), put(arrays[1], "model", None))
assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("model", None)), 2), out.sharding
close(out, jnp.matmul(*arrays[:2], precision="highest"))
"""
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("implementation", "axes", "sizes"),
    [
        ("xla", "model", "4"),
        ("interpret", "model", "4"),
        pytest.param("interpret", "data,model", "2,2", marks=pytest.mark.slow),
        pytest.param("interpret", "data,model", "2,4", marks=pytest.mark.slow),
    ],
)
def test_values_and_derivatives_are_those_of_float64(
    tmp_path: Path, implementation: str, axes: str, sizes: str
) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, implementation, axes, sizes, devices=8)
