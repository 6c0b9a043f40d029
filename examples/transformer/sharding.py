"""Which axis of a mesh cuts which dimension: by the dimension's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# A mesh may lack any of these axes. Weights are cut along `fsdp` and gathered layer by layer where they are used.
RULES: Mapping[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp", "expert"),
    "sequence": (),
    "width": ("fsdp",),
    "residual": ("tensor",),  # the width of what goes from layer to layer
    "heads": ("tensor",),
    "mlp": ("tensor",),
    "vocabulary": ("tensor",),
    "experts": ("expert",),
}

# Names of the dimensions of every weight; those of the layers lie one behind the other in a first dimension.
WEIGHTS: Mapping[str, tuple[str | None, ...]] = {
    "embedding": ("vocabulary", "width"),
    "norm": (None,),
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
        """How dimensions of these names are cut."""
        axes = () if self.mesh is None else self.mesh.axis_names
        cut = (tuple(axis for axis in RULES.get(name or "", ()) if axis in axes) for name in names)
        return PartitionSpec(*(axes or None for axes in cut))

    def constrain(self, x: jax.Array, *names: str | None) -> jax.Array:
        """Says of a value in the middle of a program how it is cut."""
        return x if self.mesh is None else jax.lax.with_sharding_constraint(x, self.of(*names))

    def of(self, *names: str | None) -> NamedSharding | None:
        """The sharding of an array with dimensions of these names."""
        return None if self.mesh is None else NamedSharding(self.mesh, self.spec(*names))

    def on_parts(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """A function that each device applies to its own parts, as kernels have to be."""
        if self.mesh is None:
            return fn
        # What a kernel does to its operands is not seen by the check of what varies over the mesh.
        return jax.shard_map(fn, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return 1 if self.mesh is None else self.mesh.size

    def size(self, axis: str) -> int:
        """Devices along an axis; 1 where the mesh has no such axis."""
        return 1 if self.mesh is None else self.mesh.shape.get(axis, 1)

    def of_weights(self, tree: Any) -> Any:
        """The same tree with a sharding in place of each weight, by the weight's name."""
        return jax.tree_util.tree_map_with_path(lambda path, _: self.of(*WEIGHTS[path[-1].key]), tree)


def placed(shapes: Any, shardings: Any) -> Any:
    """Shapes of arrays with their shardings."""
    return jax.tree.map(
        lambda shape, cut: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=cut),
        shapes,
        shardings,
        is_leaf=lambda each: each is None,
    )
