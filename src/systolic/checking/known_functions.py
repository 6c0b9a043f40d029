"""Functions that a kernel may compute, by the shapes of its operands, with variants that are off by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.schedule import LANES

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFunction:
    """A function of the operands.

    Attributes:
      text: as Python text, "lhs @ rhs".
      fn: takes the operands.
      fault: the difference from the intended function; "": it is that function.
      is_masked: True if kernels often compute it for some elements only, such as attention under a mask.
      is_sum: True if every result sums many terms, so that no other function has some of the same results by chance.
    """

    text: str
    fn: Callable[..., Any]
    fault: str = ""
    is_masked: bool = False
    is_sum: bool = False


def known_functions(operands: Sequence[Shape], out: Shape) -> Iterator[KnownFunction]:
    """Yield the functions that take operands of these shapes to a result of that shape."""
    kinds = {1: _of_one, 2: _of_two, 3: _of_three}
    if len(operands) in kinds:
        yield from kinds[len(operands)](*operands, out)


def _of_one(shape: Shape, out: Shape) -> Iterator[KnownFunction]:
    import jax
    import jax.numpy as jnp

    if out == shape:
        yield KnownFunction(text="x", fn=lambda x: x)
        if shape:
            yield KnownFunction(text="jax.nn.softmax(x)", fn=lambda x: jax.nn.softmax(x, axis=-1))
            if padding := -shape[-1] % LANES:
                yield KnownFunction(
                    text="jax.nn.softmax(x)",
                    fn=lambda x: jax.nn.softmax(_padded(x, -1), axis=-1)[..., : shape[-1]],
                    fault=f"which also counts {padding} zeros that fill up each row",
                )
            for axis in dict.fromkeys((len(shape) - 1, max(len(shape) - 2, 0))):
                yield KnownFunction(text=f"x.cumsum({axis})", fn=lambda x, axis=axis: jnp.cumsum(x, axis), is_sum=True)
            for epsilon in (0.0, 1e-6, 1e-5):
                yield KnownFunction(
                    text="x / sqrt(mean(x²))",
                    fn=lambda x, epsilon=epsilon: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon),
                )
                yield KnownFunction(
                    text="(x - mean(x)) / sqrt(var(x))",
                    fn=lambda x, epsilon=epsilon: (
                        (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + epsilon)
                    ),
                )
    if len(shape) != 2:
        return
    if out == shape[::-1]:
        yield KnownFunction(text="x.T", fn=jnp.transpose)
    for axis in (0, 1):
        if out in ((shape[1 - axis],), tuple(1 if at == axis else size for at, size in enumerate(shape))):
            yield from _reductions(shape[axis], axis, out)


def _reductions(length: int, axis: int, out: Shape) -> Iterator[KnownFunction]:
    yield KnownFunction(text=f"x.sum({axis})", fn=lambda x: x.sum(axis).reshape(out), is_sum=True)
    yield KnownFunction(text=f"x.mean({axis})", fn=lambda x: x.mean(axis).reshape(out), is_sum=True)
    yield KnownFunction(text=f"x.max({axis})", fn=lambda x: x.max(axis).reshape(out))
    padded_length = -(-length // LANES) * LANES
    if padded_length != length:
        yield KnownFunction(
            text=f"x.mean({axis})",
            fn=lambda x: x.sum(axis).reshape(out) / padded_length,
            fault=f"divided by {padded_length}, the size of whole blocks, and not by {length}",
        )


def _of_two(lhs: Shape, rhs: Shape, out: Shape) -> Iterator[KnownFunction]:
    import jax.numpy as jnp

    if len(lhs) == len(rhs) == 2:
        if lhs[1] == rhs[0] and out == (lhs[0], rhs[1]):
            yield KnownFunction(text="lhs @ rhs", fn=_product, is_sum=True)
        if lhs[1] == rhs[1] and out == (lhs[0], rhs[0]):
            yield KnownFunction(text="lhs @ rhs.T", fn=lambda x, y: _product(x, y.T), is_sum=True)
    if lhs == rhs == out:
        yield KnownFunction(text="x + y", fn=jnp.add)


def _of_three(first: Shape, second: Shape, third: Shape, out: Shape) -> Iterator[KnownFunction]:
    yield from _biased_products(first, second, third, out)
    yield from _attentions(first, second, third, out)


def _biased_products(lhs: Shape, rhs: Shape, bias: Shape, out: Shape) -> Iterator[KnownFunction]:
    import jax
    import jax.numpy as jnp

    if (
        len(lhs) != 2
        or len(rhs) != 2
        or lhs[1] != rhs[0]
        or out != (lhs[0], rhs[1])
        or bias not in (out[1:], (1, out[1]))
    ):
        return
    activations = {"{}": lambda x: x, "jax.nn.relu({})": jax.nn.relu, "jax.nn.silu({})": jax.nn.silu}
    for text, activation in (activations | {"jax.nn.gelu({})": jax.nn.gelu}).items():
        yield KnownFunction(
            text=text.format("lhs @ rhs + bias"),
            fn=lambda x, y, z, activation=activation: activation(_product(x, y) + jnp.reshape(z, (1, -1))),
            is_sum=True,
        )


def _attentions(q: Shape, k: Shape, v: Shape, out: Shape) -> Iterator[KnownFunction]:
    """Attention: queries and keys of one depth, keys and values of one length."""
    if not 2 <= len(q) <= 4 or k != v or q[:-2] != k[:-2] or q[-1] != k[-1] or out != q:
        return
    for scale, scaled in ((q[-1] ** -0.5, "q @ k.T / sqrt(depth)"), (1.0, "q @ k.T")):
        yield KnownFunction(
            text=f"softmax({scaled}) @ v",
            fn=lambda q, k, v, scale=scale: _attention(q, k, v, scale, None),
            is_masked=True,
        )
        if padding := -k[-2] % LANES:
            yield KnownFunction(
                text=f"softmax({scaled}) @ v",
                fn=lambda q, k, v, scale=scale: _attention(q, _padded(k, -2), _padded(v, -2), scale, None),
                fault=f"which also counts {padding} keys of zeros that fill up the last block",
                is_masked=True,
            )
        if q[-2] != k[-2]:
            continue
        text = f"softmax({scaled}) @ v, causal"
        for ahead, fault in (
            (0, ""),
            (1, "with a mask that lets each query see one key after it"),
            (-1, "with a mask that hides from each query the key of its own place"),
        ):
            yield KnownFunction(
                text=text,
                fn=lambda q, k, v, scale=scale, ahead=ahead: _attention(q, k, v, scale, ahead),
                fault=fault,
                is_masked=True,
            )


def _attention(q: Any, k: Any, v: Any, scale: float, ahead: int | None) -> Any:
    import jax
    import jax.numpy as jnp

    scores = jnp.einsum("...qd,...kd->...qk", q, k) * scale
    if ahead is not None:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool), ahead).at[0, 0].set(True)
        scores = jnp.where(seen, scores, -jnp.inf)
    return jnp.einsum("...qk,...kd->...qd", jax.nn.softmax(scores, axis=-1), v)


def _padded(x: Any, axis: int) -> Any:
    """Fill up an axis with zeros to whole registers."""
    import jax.numpy as jnp

    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % LANES)
    return jnp.pad(x, widths)


def _product(lhs: Any, rhs: Any) -> Any:
    import jax.numpy as jnp

    is_integer = jnp.issubdtype(lhs.dtype, jnp.integer) and jnp.issubdtype(rhs.dtype, jnp.integer)
    return jnp.matmul(lhs, rhs, preferred_element_type=jnp.int32 if is_integer else None)
