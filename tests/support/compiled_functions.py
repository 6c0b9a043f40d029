"""Targets and small functions for tests of the real compiler."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from systolic.compiler import Target, submit_compilation

V4 = Target(name="v4", topology="v4:2x2x1", device_kind="TPU v4", cores_per_device=1)
V5E = Target(name="v5e", topology="v5e:2x2", device_kind="TPU v5 lite", cores_per_device=1)
V5P = Target(name="v5p", topology="v5p:2x2x1", device_kind="TPU v5", cores_per_device=2)
V6E = Target(name="v6e", topology="v6e:2x2", device_kind="TPU v6 lite", cores_per_device=1)
TPU7X = Target(name="tpu7x", topology="tpu7x:2x2x1", device_kind="TPU7x", cores_per_device=1)


def square(size, dtype="float32"):
    return jax.ShapeDtypeStruct((size, size), jnp.dtype(dtype))


def plain(lhs, rhs):
    return jnp.tanh(lhs @ rhs)


def body(lhs_vmem, rhs_vmem, out_vmem):
    out_vmem[...] = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=out_vmem.dtype)


def kernel(lhs, rhs):
    out = jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), jnp.int32 if lhs.dtype == jnp.int8 else lhs.dtype)
    return pl.pallas_call(body, out_shape=out)(lhs, rhs)


def compile_in(pool, fn, args, target, cache=None, **options):
    return submit_compilation(pool, fn, args, target, cache=cache, **options).result()
