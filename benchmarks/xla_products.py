"""More functions of `any_function.py`: products and convolutions, transforms, random numbers, loops and branches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from xla_functions import Function, bf16, f32, i32, shaped, total


def convolution(x, kernel, stride: int = 1, groups: int = 1):
    """A convolution of images, channels last."""
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def products() -> dict[str, Function]:
    """Return products and convolutions of every kind of operand."""
    cube, flops = (1024, 1024), 2.0 * 1024**3
    image, kernel = bf16(32, 56, 56, 64), bf16(3, 3, 64, 128)
    image_flops = 2.0 * 32 * 56 * 56 * 64 * 128 * 9
    e4m3, e5m2, b11, s4 = jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e4m3b11fnuz, jnp.int4
    groups = np.array([300, 0, 1200, 548], np.int32)
    ragged = bf16(2048, 1024)
    contracted = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )

    def product(lhs, rhs, out, dtype):
        return Function(
            fn=lambda x, y: lax.dot(x, y, preferred_element_type=out),
            args=(shaped(lhs, *cube), shaped(rhs, *cube)),
            flops=flops,
            dtype=dtype,
        )

    f32_, bf16_, s8_, i32_ = jnp.float32, jnp.bfloat16, jnp.int8, jnp.int32
    return {
        "product, bf16": product(bf16_, bf16_, f32_, "bfloat16"),
        "product, f32": product(f32_, f32_, f32_, "float32"),
        "product, f32, highest precision": Function(
            fn=lambda x, y: jnp.dot(x, y, precision="highest"), args=(f32(*cube),) * 2, flops=6 * flops
        ),
        "product, int8": product(s8_, s8_, i32_, "int8"),
        "product, int4": product(s4, s4, i32_, "int8"),
        "product, int8 × int4": product(s8_, s4, i32_, "int8"),
        "product, bf16 × int8": product(bf16_, s8_, f32_, "bfloat16"),
        "product, bf16 × int4": product(bf16_, s4, f32_, "bfloat16"),
        "product, f32 × bf16": product(f32_, bf16_, f32_, "bfloat16"),
        "product, e4m3": product(e4m3, e4m3, f32_, "float8_e4m3fn"),
        "product, e5m2": product(e5m2, e5m2, f32_, "float8_e5m2"),
        "product, e4m3 × e5m2": product(e4m3, e5m2, f32_, "float8_e5m2"),
        "product, e4m3b11": product(b11, b11, f32_, "bfloat16"),
        "product, bf16 × e4m3": product(bf16_, e4m3, f32_, "bfloat16"),
        "product, batched": Function(
            fn=jnp.matmul, args=(bf16(16, 512, 256), bf16(16, 256, 512)), flops=2.0 * 16 * 512 * 512 * 256
        ),
        "matrix and vector": Function(fn=jnp.matmul, args=(bf16(8192, 4096), bf16(4096)), flops=2.0 * 8192 * 4096),
        "ragged product": Function(
            fn=lax.ragged_dot, args=(ragged, bf16(4, 1024, 1024), groups), flops=2.0 * 2048 * 1024 * 1024
        ),
        "ragged product, sizes not given": Function(
            fn=lax.ragged_dot, args=(ragged, bf16(4, 1024, 1024), i32(4)), unknown=True
        ),
        "ragged product, over the groups": Function(
            fn=lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, contracted),
            args=(ragged, ragged, groups),
            unknown=True,
            known_on=("v5p",),  # a product of all rows for each group, with masks
        ),
        "convolution, 3 × 3": Function(fn=convolution, args=(image, kernel), flops=image_flops),
        "convolution, 3 × 3, backward": Function(
            fn=jax.grad(total(convolution), (0, 1)), args=(image, kernel), flops=2 * image_flops
        ),
        "convolution, 7 × 7, stride 2": Function(
            fn=lambda x, kernel: convolution(x, kernel, stride=2), args=(bf16(32, 112, 112, 3), bf16(7, 7, 3, 64))
        ),
        "convolution, depthwise": Function(
            fn=lambda x, kernel: convolution(x, kernel, groups=64), args=(image, bf16(3, 3, 1, 64))
        ),
    }


def transforms() -> dict[str, Function]:
    """Return transforms, solvers and random numbers."""
    key = shaped(jnp.uint32, 2)
    small = f32(8, 256, 256)
    return {
        "FFT": Function(fn=jnp.fft.fft, args=(shaped(jnp.complex64, 64, 4096),)),
        "FFT, real": Function(fn=jnp.fft.rfft, args=(f32(256, 1024),)),
        "FFT, two dimensions": Function(fn=jnp.fft.fft2, args=(shaped(jnp.complex64, 4, 256, 256),)),
        "random bits": Function(fn=lambda key: jax.random.bits(key, (1024, 1024)), args=(key,)),
        "random uniform": Function(fn=lambda key: jax.random.uniform(key, (1024, 1024)), args=(key,)),
        "random normal": Function(fn=lambda key: jax.random.normal(key, (1024, 1024)), args=(key,)),
        "random categorical": Function(fn=jax.random.categorical, args=(key, f32(64, 32_000))),
        "random permutation": Function(fn=lambda key: jax.random.permutation(key, 4096), args=(key,)),
        "random bits of the hardware": Function(
            fn=lambda state: lax.rng_bit_generator(state, (1024, 1024)), args=(shaped(jnp.uint32, 4),)
        ),
        "Cholesky": Function(fn=jnp.linalg.cholesky, args=(small,)),
        "triangular solve": Function(
            fn=lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), args=(small, small)
        ),
        "QR": Function(fn=jnp.linalg.qr, args=(f32(256, 256),)),
        "eigenvalues": Function(fn=jnp.linalg.eigvalsh, args=(f32(64, 64),), unknown=True),
    }


def loops() -> dict[str, Function]:
    """Return loops and branches."""
    square = f32(512, 512)
    flops = 2.0 * 512**3

    def branching(n, x):
        return lax.cond(n > 4, lambda y: y @ y, lambda y: y + 1, x)

    def newton(x):
        return lax.while_loop(lambda y: jnp.abs(y * y - x).max() > 1e-3, lambda y: (y + x / y) / 2, x)

    def recurrent(weights, state, inputs):
        return lax.scan(lambda state, x: (jnp.tanh(state @ weights + x), state.sum()), state, inputs)

    def summed(*args):
        state, sums = recurrent(*args)
        return (state.sum() + sums.sum()).astype(jnp.float32)

    recurrent_args = (bf16(512, 512), bf16(128, 512), bf16(32, 128, 512))
    recurrent_flops = 2.0 * 32 * 128 * 512 * 512
    return {
        "for": Function(
            fn=lambda x: lax.fori_loop(0, 10, lambda _, y: jnp.sin(y @ x), x), args=(square,), flops=10 * flops
        ),
        "for, a count that is given": Function(
            fn=lambda n, x: lax.fori_loop(0, n, lambda _, y: jnp.sin(y @ x), x),
            args=(np.int32(7), square),
            flops=7 * flops,
        ),
        "for, a count that is not given": Function(
            fn=lambda n, x: lax.fori_loop(0, n, lambda _, y: jnp.sin(y @ x), x), args=(i32(), square), unknown=True
        ),
        "while, until it has converged": Function(fn=newton, args=(square,), unknown=True),
        "while, inside a map": Function(
            fn=jax.vmap(lambda v: lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] * 2), (0, v))),
            args=(f32(256, 512),),
        ),
        "scan": Function(fn=recurrent, args=recurrent_args, flops=recurrent_flops),
        "scan, backward": Function(fn=jax.grad(summed, (0, 1, 2)), args=recurrent_args, flops=2 * recurrent_flops),
        "map": Function(fn=lambda x: lax.map(lambda row: jnp.sort(row), x), args=(f32(16, 8192),)),
        "cond": Function(
            fn=lambda n, x: lax.cond(n > 4, lambda y: y @ y, lambda y: y + 1, x),
            args=(np.int32(7), square),
            flops=flops,
        ),
        "cond, a predicate that is not given": Function(fn=branching, args=(i32(), square), unknown=True),
        "cond, a predicate that is computed": Function(
            fn=lambda x: lax.cond(x.sum() > 4, lambda y: y @ y, lambda y: y + 1, x), args=(square,), unknown=True
        ),
        "switch": Function(
            fn=lambda n, x: lax.switch(n, [jnp.sin, lambda y: y @ y, jnp.cos], x),
            args=(np.int32(1), square),
            flops=flops,
        ),
    }
