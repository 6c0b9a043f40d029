"""The sums of a piece of tokens, rounded to the dtype of the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.moe.blocks import ROW_TILE
from systolic.schedule.legality import LANES

_ROWS = 64  # in one piece of code


def round_sums(sums: Any, first_token: Any, target: Any, arrivals: Sequence[Any] = ()) -> None:
    """Write the sums of tokens from a first one on to `target`, [tokens, columns], and set them to zero.

    Args:
      sums: float32 [words, 128], in tiles of eight tokens.
      arrivals: further sums of the same tokens, of the shape of `target`.
    """
    tokens, columns = target.shape
    registers = columns // LANES

    def tile(number: Any) -> None:
        rows = pl.ds(pl.multiple_of(number * ROW_TILE, ROW_TILE), ROW_TILE)
        first = (first_token + number * ROW_TILE) * registers
        words = [
            [pl.ds(pl.multiple_of(first + (eight + at) * SUBLANES, SUBLANES), SUBLANES) for at in range(registers)]
            for eight in range(0, ROW_TILE // SUBLANES * registers, registers)
        ]
        total = jnp.concatenate([jnp.concatenate([sums[part, :] for part in parts], axis=1) for parts in words])
        for arrival in arrivals:
            total += arrival[rows, :].astype(jnp.float32)
        target[rows, :] = total.astype(target.dtype)
        for part in itertools.chain(*words):
            sums[part, :] = jnp.zeros((SUBLANES, LANES), jnp.float32)

    count = tokens // ROW_TILE
    pl.loop(0, count, unroll=math.gcd(count, _ROWS // ROW_TILE))(tile)
