"""The beginning of scripts that multiply arrays of a mesh with explicit axes, for `run_on_virtual_devices`.

They make the mesh, `mesh`, themselves. Their first argument says if kernels are interpreted.
"""

PRODUCTS_ON_A_MESH = """
import functools, sys
from unittest import mock
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import systolic
from systolic.compat import interpret_params, races_found
from systolic.ops.collective.choice import RingChoice
from systolic.ops.matmul import across_chips

implementation = interpret_params(detect_races=True, uninitialized_memory="nan") if sys.argv[1] == "interpret" else None
random = np.random.default_rng(0)
options = {"implementation": implementation, "chip": "v6e", "precision": "highest"}

def explicit_mesh(sizes, names):
    devices = jax.devices()[: np.prod(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Explicit,) * len(names), devices=devices)

def normal(*shape):
    return (random.standard_normal(shape) / 8).astype(np.float32)

def put(array, *cut):
    return jax.device_put(array, NamedSharding(mesh, P(*cut)))

def close(actual, expected):
    for value, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=2e-5 * float(abs(np.asarray(wanted)).max()))
"""
