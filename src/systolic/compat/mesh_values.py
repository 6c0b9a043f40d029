"""Values that depend on the devices of a mesh: known where a function is traced, or when its program is lowered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

MESH_VALUE = "systolic_mesh_value"  # the name of the primitive, whose parameter `of_mesh` computes the value
OfMesh = Callable[[Any], tuple[int, ...]]  # of a mesh with devices, or of an abstract one; hashable


def concrete_mesh() -> Any:
    """Return the mesh with devices that `jax.set_mesh` has set, if it is the one that is traced for; else None."""
    from jax._src.mesh import get_concrete_mesh
    from jax.sharding import get_abstract_mesh

    mesh = get_concrete_mesh()
    is_set = mesh is not None and not mesh.empty and dict(mesh.shape) == dict(get_abstract_mesh().shape)
    return mesh if is_set else None


def mesh_set_of(args: Any) -> AbstractContextManager[Any]:
    """Set the mesh of arguments on a mesh with explicit axes, as JAX asks its users to: kernels look up its devices."""
    import jax

    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args))
    meshes = {sharding.mesh for sharding in shardings if isinstance(sharding, jax.sharding.NamedSharding)}
    mesh = meshes.pop() if len(meshes) == 1 else None
    return jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) and mesh.explicit_axes else nullcontext()


def mesh_value(of_mesh: OfMesh, size: int) -> Any:
    """Return int32 [size], which `of_mesh` computes from the mesh of the `jax.shard_map` when it is lowered."""
    return _primitive().bind(of_mesh=of_mesh, size=size)


@functools.cache
def _primitive() -> Any:
    import jax.numpy as jnp
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    made: Any = Primitive(MESH_VALUE)
    made.def_abstract_eval(lambda *, of_mesh, size: ShapedArray((size,), jnp.dtype("int32")))
    made.def_impl(lambda *, of_mesh, size: jnp.asarray(of_mesh(None), jnp.int32))

    def lowered(context: Any, *, of_mesh: OfMesh, size: int) -> Any:
        numbers = of_mesh(getattr(context.module_context.axis_context, "mesh", None))
        return mlir.lower_fun(lambda: jnp.asarray(numbers, jnp.int32), multiple_results=False)(context)

    mlir.register_lowering(made, lowered)
    return made
