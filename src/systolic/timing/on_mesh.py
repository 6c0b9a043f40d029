"""Experiments over a mesh: arguments and results with the shardings that an op names."""

from __future__ import annotations

import dataclasses
from typing import Any

from systolic.compiler.slice_devices import explicit_axes, slice_mesh
from systolic.ops.op_programs import Shardings
from systolic.spec import SliceMesh
from systolic.timing.experiment import Experiment


def on_mesh(
    experiment: Experiment, mesh: SliceMesh | None, shardings: Shardings | None, *, explicit: bool
) -> Experiment:
    """Return the experiment on a slice; unchanged if it is on one device.

    Args:
      experiment: its arguments are whole arrays.
      explicit: the function has the mesh's axes in the types of its arguments, as users of `systolic.matmul` have them;
        else the axes are left to XLA, which gets the shardings of results.

    Raises:
      SliceError: the chip has no such slice, or the mesh does not hold its devices.
    """
    if mesh is None:
        return experiment
    import jax
    from jax.sharding import NamedSharding

    assert shardings is not None
    devices: Any = slice_mesh(experiment.chip, mesh.topology, **mesh.sizes)
    devices = explicit_axes(devices) if explicit else devices
    args = [
        jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(devices, cut))
        if isinstance(array, jax.ShapeDtypeStruct)
        else array  # its values are known on every device
        for array, cut in zip(experiment.args, shardings.arguments, strict=True)
    ]
    fn: Any = experiment.fn
    if not explicit:
        out = jax.tree.map(lambda cut: NamedSharding(devices, cut), shardings.result, is_leaf=_is_cut)
        fn = jax.jit(fn, out_shardings=out)
    return dataclasses.replace(experiment, fn=fn, args=args, topology=mesh.topology)


def _is_cut(value: Any) -> bool:
    from jax.sharding import PartitionSpec

    return isinstance(value, PartitionSpec)
