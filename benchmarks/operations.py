"""The operations in the table of costs: the computation of each, and its rating on the details page.

An elementwise operation is a step: it makes the next register from a register and its neighbor. A step that repetition
does not change (|‖x‖| is |x|) is followed by an addition, whose cost is subtracted again: `beside`. An operation on
shapes is a function of one block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

FLOAT_GROUPS = ARITHMETIC, TRANSCENDENTAL, CHOOSING = "arithmetic", "transcendental", "comparing and choosing"
CHEAP, MEDIUM, EXPENSIVE = "cheap", "medium", "expensive"  # the green, yellow and red of the details page


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise:
    """An operation on registers.

    Attributes:
      name: as it is written.
      group: of the table.
      step: the next value of a register `a`, of it and its neighbor `b`, both full registers.
      dtype: of a and b.
      page: its rating on the details page; "" if there is none.
      beside: name of the additional operation in the step, of the same dtype, to be subtracted; "" for none.
      repetitions: of the step; fewer for long steps.
    """

    name: str
    group: str
    step: Callable[[Array, Array], Array]
    dtype: str = "float32"
    page: str = ""
    beside: str = ""
    repetitions: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """An operation on the shape of a block.

    Attributes:
      name: as a reader would say it.
      group: of the table.
      shape: of the block, before the operation.
      function: of the block.
      dtype: of its elements.
      page: its rating on the details page.
      after: True if the counted registers are the result's (a broadcast), not the block's.
    """

    name: str
    group: str
    shape: tuple[int, ...]
    function: Callable[[Array], Array]
    dtype: str = "float32"
    page: str = ""
    after: bool = False


def _float_steps() -> tuple[Elementwise, ...]:
    return (
        Elementwise(name="a + b", group=ARITHMETIC, step=lambda a, b: a + b, page=CHEAP),
        Elementwise(name="a - b", group=ARITHMETIC, step=lambda a, b: a - b, page=CHEAP),
        Elementwise(name="a * b", group=ARITHMETIC, step=lambda a, b: a * b, page=CHEAP),
        Elementwise(name="a * b + a", group=ARITHMETIC, step=lambda a, b: a * b + a),
        Elementwise(name="a / b", group=ARITHMETIC, step=lambda a, b: a / b, page=MEDIUM),
        Elementwise(name="1 / a", group=ARITHMETIC, step=lambda a, b: 1 / a),
        Elementwise(name="a // b", group=ARITHMETIC, step=lambda a, b: a // b, page=MEDIUM, repetitions=2),
        Elementwise(name="a % b", group=ARITHMETIC, step=lambda a, b: a % b, page=MEDIUM, repetitions=1),
        Elementwise(name="a ** b", group=TRANSCENDENTAL, step=lambda a, b: a**b, page=MEDIUM, repetitions=1),
        Elementwise(name="exp(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.exp(a), page=MEDIUM),
        Elementwise(name="exp2(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.exp2(a)),
        Elementwise(name="log(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.log(a)),
        Elementwise(name="log1p(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.log1p(a), repetitions=2),
        Elementwise(name="tanh(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.tanh(a), page=MEDIUM),
        Elementwise(name="sigmoid(a)", group=TRANSCENDENTAL, step=lambda a, b: jax.nn.sigmoid(a), repetitions=4),
        Elementwise(name="erf(a)", group=TRANSCENDENTAL, step=lambda a, b: lax.erf(a), repetitions=2),
        Elementwise(name="sqrt(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.sqrt(a), repetitions=4),
        Elementwise(name="rsqrt(a)", group=TRANSCENDENTAL, step=lambda a, b: lax.rsqrt(a), repetitions=4),
        Elementwise(name="sin(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.sin(a), page=EXPENSIVE, repetitions=1),
        Elementwise(name="cos(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.cos(a), page=EXPENSIVE, repetitions=1),
        Elementwise(name="tan(a)", group=TRANSCENDENTAL, step=lambda a, b: jnp.tan(a), repetitions=1),
        Elementwise(name="max(a, b)", group=CHOOSING, step=jnp.maximum, page=CHEAP),
        Elementwise(name="min(a, b)", group=CHOOSING, step=jnp.minimum, page=CHEAP),
        Elementwise(
            name="abs(a)", group=CHOOSING, step=lambda a, b: jnp.abs(a) - b, page=CHEAP, beside="a + b"
        ),
        Elementwise(
            name="where(a > b, …)", group=CHOOSING, step=lambda a, b: jnp.where(a > b, a - b, b), page=CHEAP,
            beside="a + b",
        ),
        Elementwise(
            name="where(a == b, …)", group=CHOOSING, step=lambda a, b: jnp.where(a == b, a - b, b), page=CHEAP,
            beside="a + b",
        ),
        Elementwise(
            name="floor(a)", group=CHOOSING, step=lambda a, b: jnp.floor(a) - b, beside="a + b"
        ),
        Elementwise(name="round(a)", group=CHOOSING, step=lambda a, b: jnp.round(a) - b, beside="a + b"),
    )  # fmt: skip


def _integer_steps() -> tuple[Elementwise, ...]:
    def of(name: str, step: Callable[[Array, Array], Array], page: str = "", **more: object) -> Elementwise:
        group = "integers and bits"
        return Elementwise(name=name, group=group, step=step, dtype="int32", page=page, **more)  # pyright: ignore

    return (
        of("a + b", lambda a, b: a + b, CHEAP),
        of("a * b", lambda a, b: a * b, CHEAP),
        of("a // b", lambda a, b: a // b, MEDIUM, repetitions=1),
        of("a % b", lambda a, b: a % b, MEDIUM, repetitions=1),
        of("div(a, b), towards 0", lax.div, MEDIUM, repetitions=1),
        of("a // 8", lambda a, b: a // 8 + b, MEDIUM, beside="a + b", repetitions=2),
        of("a % 8", lambda a, b: a % 8 + b, MEDIUM, beside="a + b", repetitions=2),
        of("a // 10", lambda a, b: a // 10 + b, MEDIUM, beside="a + b", repetitions=1),
        of("a & b", lambda a, b: (a & b) + b, CHEAP, beside="a + b"),
        of("a | b", lambda a, b: (a | b) + b, CHEAP, beside="a + b"),
        of("a ^ b", lambda a, b: (a ^ b) + b, CHEAP, beside="a + b"),
        of("~a", lambda a, b: ~a + b, CHEAP, beside="a + b"),
        of("a << b", lambda a, b: a << b, CHEAP),
        of("a >> b", lambda a, b: a >> b, CHEAP),
        of("max(a, b)", jnp.maximum, CHEAP),
        of("where(a > b, …)", lambda a, b: jnp.where(a > b, a + b, b), CHEAP, beside="a + b"),
    )


def _narrow_steps() -> tuple[Elementwise, ...]:
    return tuple(
        Elementwise(name=name, group="narrow types", step=step, dtype=dtype, repetitions=4)
        for dtype, steps in (
            ("bfloat16", ("a + b", "a * b", "a / b", "max(a, b)", "exp(a)", "tanh(a)")),
            ("int16", ("a + b", "max(a, b)")),
            ("int8", ("a + b", "max(a, b)")),
        )
        for name, step in ((step.name, step.step) for step in _float_steps() if step.name in steps)
    )


def _casts() -> tuple[Elementwise, ...]:
    def there_and_back(start: str, *middle: str) -> tuple[Elementwise, ...]:
        return tuple(
            Elementwise(
                name=f"{start} → {other} → {start}",
                group="casts, there and back",
                step=lambda a, b, other=other: a.astype(other).astype(a.dtype) + b,
                dtype=start,
                page=CHEAP,
                beside="a + b",
                repetitions=4,
            )
            for other in middle
        )

    return (
        *there_and_back("float32", "bfloat16", "int32", "int8", "float8_e4m3fn"),
        *there_and_back("int32", "float32", "int16", "int8"),
        Elementwise(
            name="(a > b) → float32",
            group="casts, there and back",
            step=lambda a, b: (a > b).astype(a.dtype) + b,
            beside="a + b",
        ),
    )


ELEMENTWISE = (*_float_steps(), *_integer_steps(), *_narrow_steps(), *_casts())

SLOWEST, SLOWER, FREE = "slowest", "slower", "free"  # the page's ranking of axes, and its free operations
READ = "read and add"


def _along_axes() -> tuple[Shaping, ...]:
    reduce, spread = "reductions", "broadcasts"
    return (
        Shaping(
            name="sum of [8,8,128] along its first axis", group=reduce, shape=(8, 8, 128),
            function=lambda x: x.sum(0),
        ),
        Shaping(
            name="sum of [64,128] along its second to last axis", group=reduce, shape=(64, 128), page=SLOWER,
            function=lambda x: x.sum(0, keepdims=True),
        ),
        Shaping(
            name="sum of [8,8,128] along its second to last axis", group=reduce, shape=(8, 8, 128), page=SLOWER,
            function=lambda x: x.sum(1, keepdims=True),
        ),
        Shaping(
            name="sum of [64,128] along its last axis", group=reduce, shape=(64, 128), page=SLOWEST,
            function=lambda x: x.sum(-1, keepdims=True),
        ),
        Shaping(
            name="sum of [8,1024] along its last axis", group=reduce, shape=(8, 1024), page=SLOWEST,
            function=lambda x: x.sum(-1, keepdims=True),
        ),
        Shaping(
            name="max of [64,128] along its last axis", group=reduce, shape=(64, 128), page=SLOWEST,
            function=lambda x: x.max(-1, keepdims=True),
        ),
        Shaping(
            name="argmax of [64,128] along its last axis", group=reduce, shape=(64, 128),
            function=lambda x: jnp.argmax(x, -1),
        ),
        Shaping(
            name="[8,128] to [8,8,128]", group=spread, shape=(8, 128), page=FREE, after=True,
            function=lambda x: jnp.broadcast_to(x, (8, 8, 128)),
        ),
        Shaping(
            name="[8,1,128] to [8,8,128]", group=spread, shape=(8, 1, 128), page=SLOWER, after=True,
            function=lambda x: jnp.broadcast_to(x, (8, 8, 128)),
        ),
        Shaping(
            name="[64,1] to [64,128]", group=spread, shape=(64, 1), page=SLOWEST, after=True,
            function=lambda x: jnp.broadcast_to(x, (64, 128)),
        ),
    )  # fmt: skip


def _moves() -> tuple[Shaping, ...]:
    def turned(shape: tuple[int, ...], axes: tuple[int, ...], page: str = "", dtype: str = "float32") -> Shaping:
        return Shaping(
            name=f"{_text(shape)} to axes {_text(axes)}", group="transposes", shape=shape, dtype=dtype, page=page,
            function=lambda x: x.transpose(axes),
        )  # fmt: skip

    def reshaped(shape: tuple[int, ...], to: tuple[int, ...], page: str = "", dtype: str = "float32") -> Shaping:
        return Shaping(
            name=f"{_text(shape)} to {_text(to)}", group="reshapes", shape=shape, dtype=dtype, page=page,
            function=lambda x: x.reshape(to),
        )  # fmt: skip

    return (
        turned((2, 4, 8, 128), (1, 0, 2, 3), FREE),
        turned((8, 8, 128), (1, 0, 2)),
        turned((128, 128), (1, 0)),
        turned((64, 128), (1, 0)),
        turned((128, 128), (1, 0), dtype="bfloat16"),
        reshaped((2, 4, 8, 128), (8, 8, 128), FREE),
        reshaped((8, 8, 128), (64, 128), FREE),
        reshaped((64, 128), (8, 8, 128)),
        reshaped((4, 16, 128), (64, 128), FREE, dtype="bfloat16"),
        reshaped((8, 8, 128), (64, 128), FREE, dtype="bfloat16"),
        reshaped((16, 4, 128), (64, 128), FREE),
        reshaped((32, 256), (64, 128)),
        reshaped((64, 128), (32, 256)),
        reshaped((8, 8, 128), (8, 1024)),
        reshaped((64, 128), (128, 64)),
        Shaping(
            name="sum of [64,128] along its last axis, then [64,1]", group="reshapes", shape=(64, 128), page=FREE,
            function=lambda x: x.sum(-1).reshape(64, 1),
        ),
    )  # fmt: skip


def _text(sizes: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, sizes))}]"


SHAPINGS = (
    *(
        Shaping(name=READ, group="for comparison", shape=(64, 128), function=lambda x: x, dtype=dtype)
        for dtype in ("float32", "bfloat16")
    ),
    *_along_axes(),
    *_moves(),
)
