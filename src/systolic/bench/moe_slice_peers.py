"""Public kernels of whole layers of experts over devices, as their users call them.

tpu-inference's `fused_ep_moe` is vLLM's on TPUs; tokamax's `fused_moe` is experimental. Both get gate and up as one
array, and all tokens' rows cut over the devices.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from systolic.bench.cases import EXPERT
from systolic.chips import Chip
from systolic.compiler import PlacedArray
from systolic.compiler.slice_devices import slice_mesh
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.op_programs import Peer
from systolic.spec import SliceMesh
from systolic.support.bugs import runs_user_code
from systolic.support.tpu_inference import PACKAGE, is_installed, kernel_module

_TOKAMAX = "tokamax"


def peers(spec: MoeSpec, chip: Chip, mesh: SliceMesh) -> Iterator[Peer]:
    """Yield both kernels for a layer over the devices of a slice."""
    devices = slice_mesh(chip, mesh.topology, **mesh.sizes).devices
    whole, (k, n) = (spec.m, spec.k), spec.matrices[0]
    kernels = (
        # tpu-inference reads the router's logits in the dtype of the tokens, and takes a mesh of two axes.
        ("tpu-inference", is_installed(), PACKAGE, _tpu_inference, ("data", EXPERT), (2, k, n), spec.dtype),
        (
            _TOKAMAX,
            importlib.util.find_spec(_TOKAMAX) is not None,
            _TOKAMAX,
            _tokamax,
            (EXPERT,),
            (k, 2 * n),
            "float32",
        ),
    )
    for name, has_package, package, program, axes, gate_and_up, dtype_logits in kernels:
        made = Mesh(devices.reshape((1,) * (len(axes) - 1) + (-1,)), axes)
        shapes = (
            (whole, spec.dtype),
            ((spec.experts, *gate_and_up), spec.dtype),
            ((spec.experts, n, k), spec.dtype),
        )
        sharding = NamedSharding(made, PartitionSpec(EXPERT))
        # Of logits drawn at random all experts are equally likely, as a simulation of the other programs assumes.
        logits = np.random.default_rng(0).standard_normal((spec.m, spec.experts), np.float32).astype(dtype_logits)
        yield Peer(
            name=name,
            program=functools.partial(program, made, spec.top_k) if has_package else None,
            reason="" if has_package else f"{package} is not installed",
            arguments=(
                *(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding) for shape, dtype in shapes),
                PlacedArray(logits, sharding),
            ),
        )


@runs_user_code  # any error of a public kernel is its result
def _tpu_inference(mesh: Any, top_k: int, *operands: Array) -> Array:
    layer = kernel_module("fused_moe.v1.kernel").fused_ep_moe
    return layer(mesh, *operands, top_k, renormalize_topk_logits=True, ep_axis_name=EXPERT)


@runs_user_code
def _tokamax(mesh: Any, top_k: int, *operands: Array) -> Array:
    config = importlib.import_module(_TOKAMAX).config
    layer = importlib.import_module(f"{_TOKAMAX}.ops.experimental.tpu").FusedMoe()
    with config.cross_compile(True):  # no TPU is in sight: the kernel is for another machine
        return layer(*operands, topk=top_k, mesh=mesh)
