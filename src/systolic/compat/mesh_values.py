"""Values that depend on the devices of a mesh: known where a function is traced, or when its program is lowered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import get_abstract_mesh

MESH_VALUE = "systolic_mesh_value"
OfMesh = Callable[[Any], tuple[int, ...]]  # of a mesh with devices, or of an abstract one; hashable

_mesh_value = Primitive(MESH_VALUE)
_mesh_value.def_abstract_eval(lambda *, of_mesh, size: jax.core.ShapedArray((size,), np.dtype("int32")))
_mesh_value.def_impl(lambda *, of_mesh, size: jnp.asarray(of_mesh(None), jnp.int32))


def concrete_mesh() -> Any:
    """Return the mesh with devices that `jax.set_mesh` has set, if it is the one that is traced for; else None."""
    from jax._src.mesh import get_concrete_mesh

    mesh = get_concrete_mesh()
    is_set = mesh is not None and not mesh.empty and dict(mesh.shape) == dict(get_abstract_mesh().shape)
    return mesh if is_set else None


def mesh_value(of_mesh: OfMesh, size: int) -> Array:
    """Return int32 [size], which `of_mesh` computes from the mesh of the `jax.shard_map` when it is lowered."""
    return _mesh_value.bind(of_mesh=of_mesh, size=size)


def _lowered(context: Any, *, of_mesh: OfMesh, size: int) -> Any:
    numbers = of_mesh(getattr(context.module_context.axis_context, "mesh", None))
    return mlir.lower_fun(lambda: jnp.asarray(numbers, jnp.int32), multiple_results=False)(context)


mlir.register_lowering(_mesh_value, _lowered)
