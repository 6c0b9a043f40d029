"""The mesh axes that cut each dimension, by the dimension's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, explicit_axes, use_abstract_mesh

# A mesh may lack any of these axes. Weights are cut along `fsdp` and gathered layer by layer where they are used.
RULES: Mapping[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp", "expert"),
    "sequence": (),
    "width": ("fsdp",),
    "residual": ("tensor",),  # the width of the values between layers
    "heads": ("tensor",),
    "mlp": ("tensor",),
    "vocabulary": ("tensor",),
    "experts": ("expert",),
}

# Names of the dimensions of every weight; weights of layers are stacked in an additional first dimension.
WEIGHTS: Mapping[str, tuple[str | None, ...]] = {
    "embedding": ("vocabulary", "width"),
    "norm": (None,),
    "layer_embeddings": ("vocabulary", "width"),
    "layer_projection": ("width", "mlp"),
    "layer_projection_norm": (None,),
    "logits": ("width", "vocabulary"),
    "attention_norm": (None, None),
    "query_norm": (None, None),
    "key_norm": (None, None),
    "attention_out_norm": (None, None),
    "query": (None, "width", "heads", None),
    "key": (None, "width", "heads", None),
    "value": (None, "width", "heads", None),
    "out": (None, "heads", None, "width"),
    "mlp_norm": (None, None),
    "mlp_out_norm": (None, None),
    "gate": (None, "width", "mlp"),
    "up": (None, "width", "mlp"),
    "down": (None, "mlp", "width"),
    "layer_gate": (None, "width", "mlp"),
    "layer_up": (None, "mlp", "width"),
    "layer_out_norm": (None, None),
    "layer_scale": (None, None),
    "kv_down": (None, "width", None),
    "kv_norm": (None, None),
    "kv_up": (None, "width", "heads", None),
    "router": (None, "width", None),
    "expert_gate": (None, "experts", "width", "mlp"),
    "expert_up": (None, "experts", "width", "mlp"),
    "expert_down": (None, "experts", "mlp", "width"),
}


@dataclass(frozen=True, slots=True)
class Sharding:
    """The mesh, or None for one device."""

    mesh: Mesh | None

    def spec(self, *names: str | None) -> PartitionSpec:
        """Return the partition of dimensions with these names."""
        axes = () if self.mesh is None else self.mesh.axis_names
        cut = (tuple(axis for axis in RULES.get(name or "", ()) if axis in axes) for name in names)
        return PartitionSpec(*(axes or None for axes in cut))

    def constrain(self, x: jax.Array, *names: str | None) -> jax.Array:
        """Constrain the sharding of a value inside of a program."""
        return x if self.mesh is None else jax.lax.with_sharding_constraint(x, self.of(*names))

    def of(self, *names: str | None) -> NamedSharding | None:
        """Return the sharding of an array with dimensions of these names."""
        return None if self.mesh is None else NamedSharding(self.mesh, self.spec(*names))

    def on_parts(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """Return a function that each device applies to its own parts, as kernels require."""
        if self.mesh is None:
            return fn
        # The check of values that vary over the mesh does not see inside of kernels.
        return jax.shard_map(fn, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def on_types(self, fn: Callable[..., Any], in_specs: Any) -> Callable[..., Any]:
        """Return a function that sees in the types of its arrays how they are cut, and itself cuts what it computes."""
        if self.mesh is None:
            return fn
        mesh = self.mesh.abstract_mesh

        def on_explicit_axes(*arrays: jax.Array) -> Any:
            with use_abstract_mesh(mesh):
                return explicit_axes(fn, in_sharding=in_specs)(*arrays)

        return on_explicit_axes

    @property
    def devices(self) -> int:
        """Return the number of devices of the mesh."""
        return 1 if self.mesh is None else self.mesh.size

    def size(self, axis: str) -> int:
        """Return the number of devices along an axis; 1 if the mesh has no such axis."""
        return 1 if self.mesh is None else self.mesh.shape.get(axis, 1)

    def of_weights(self, tree: Any) -> Any:
        """Return the tree with a sharding in place of each weight, by the weight's name."""
        return jax.tree_util.tree_map_with_path(lambda path, _: self.of(*WEIGHTS[path[-1].key]), tree)


def placed(shapes: Any, shardings: Any) -> Any:
    """Return shapes of arrays with their shardings."""
    return jax.tree.map(
        lambda shape, cut: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=cut),
        shapes,
        shardings,
        is_leaf=lambda each: each is None,
    )
