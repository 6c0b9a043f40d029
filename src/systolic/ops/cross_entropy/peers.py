"""The public kernel of the loss, tokamax's, as its users call it."""

from __future__ import annotations

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
    program = None if reason else differentiated(spec, _by_tokamax)
    yield Peer(name="tokamax", program=program, reason=reason)


@runs_user_code  # what a public kernel raises is what came of it
def _by_tokamax(x: Array, w: Array, labels: Array) -> Array:
    tokamax: Any = importlib.import_module("tokamax")  # raced if installed
    with tokamax.config.cross_compile(True):  # no TPU is in sight: the kernel is for another machine
        return tokamax.linear_softmax_cross_entropy_loss(x, labels, w, reduction="mean", implementation="mosaic_tpu")
