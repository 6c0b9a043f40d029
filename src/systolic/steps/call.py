"""The call of a step: a function with its arguments, and its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """A step of a model, as `systolic.step` takes it.

    Attributes:
      fn: the function, best as a `jax.jit` that gives away what it updates (`donate_argnums`).
      args: its arguments: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them, sharded over a mesh if there is one.
      tokens: number that the step processes, on all devices together; 0: it has none.
      flops: operations of the model, on all devices together, as its MFU counts them: without recomputation,
        and with attention to all tokens; 0: not known.
      flops_causal: the same, with half of a causal attention.
      parts: names of the model's parts, as `jax.named_scope` names them. Of several in a name stack the last is used.
      mesh: set while the function is traced, as by `jax.set_mesh`, over the devices of the slice; None: none.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    tokens: int = 0
    flops: float = 0.0
    flops_causal: float = 0.0
    parts: tuple[str, ...] = ()
    mesh: Any = None
