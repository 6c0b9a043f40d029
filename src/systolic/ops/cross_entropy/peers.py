"""The public kernel of the loss, tokamax's, as its users call it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from jax import Array

from systolic.ops.cross_entropy.programs import differentiated
from systolic.ops.cross_entropy.spec import CrossEntropySpec
from systolic.ops.op_programs import Peer
from systolic.support.bugs import runs_user_code


def peers(spec: CrossEntropySpec) -> Iterator[Peer]:
    """Yield tokamax's kernel, which computes logits again for the gradients."""
    reason = ""
    if spec.soft_cap or spec.total:
        reason = "tokamax's loss has neither a soft cap nor label smoothing"
    elif importlib.util.find_spec("tokamax") is None:
        reason = "tokamax is not installed"
    yield Peer(name="tokamax", program=None if reason else functools.partial(_by_tokamax, spec), reason=reason)


@runs_user_code  # what a public kernel raises is what came of it
def _by_tokamax(spec: CrossEntropySpec, x: Array, w: Array, labels: Array) -> Any:
    tokamax: Any = importlib.import_module("tokamax")  # raced if installed

    def loss(x: Array, w: Array, labels: Array) -> Array:
        return tokamax.linear_softmax_cross_entropy_loss(x, labels, w, reduction="mean", implementation="mosaic_tpu")

    # No TPU is in sight: the kernels, the gradients' kernel too, are for another machine.
    with tokamax.config.cross_compile(True):
        return differentiated(spec, loss)(x, w, labels)
