"""Recorded operations that tokamax' package runs: its Pallas kernels, and its references of rarer operations.

Its operations read their own records: arguments and tiles are decoded by the package's adapters, and the tiles of the
record are used, never those of its tuning tables. It needs Python 3.12 or later.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

import jax

from systolic.support.bugs import runs_user_code
from systolic.support.untrusted import shown
from systolic.validation.errors import OpError
from systolic.validation.recorded.call import Call
from systolic.validation.recorded.index_contents import listed_contents

_SPLASH = "experimental.tpu.splash_attention"
# The module of each operation, below tokamax._src.ops. The class is the operation's name in camel case.
_MODULES = {
    "batched_rpa": "batched_rpa.base",
    "causal_conv1d_gated_delta_rule": "causal_conv1d_gated_delta_rule.base",
    "csa_gather": "csa_gather.base",
    "deepseek_rope": "deepseek_rope.base",
    "dsv4_compressor": "dsv4_compressor.base",
    "grouped_lowrank_proj": "grouped_lowrank_proj.base",
    "mhc_fused_post_pre": "mhc.base",
    "mhc_post": "mhc.base",
    "mhc_pre": "mhc.base",
    "multi_head_latent_attention": "experimental.mla.base",
    "pallas_mosaic_tpu_causal_conv1d_gated_delta_rule": "causal_conv1d_gated_delta_rule.pallas_mosaic_tpu",
    "pallas_mosaic_tpu_flash_attention": "attention.pallas_mosaic_tpu",
    "pallas_mosaic_tpu_flash_attention_vjp": "attention.pallas_mosaic_tpu_vjp",
    "pallas_mosaic_tpu_linear_softmax_cross_entropy_loss": "linear_softmax_cross_entropy_loss.pallas_mosaic_tpu",
    "pallas_mosaic_tpu_linear_softmax_cross_entropy_loss_vjp": "linear_softmax_cross_entropy_loss.pallas_mosaic_tpu",
    "pallas_mosaic_tpu_ragged_dot": "ragged_dot.pallas_mosaic_tpu",
    "pallas_mosaic_tpu_splash_attention": f"{_SPLASH}.pallas_mosaic_tpu",
    "pallas_mosaic_tpu_splash_attention_vjp": f"{_SPLASH}.pallas_mosaic_tpu_vjp",
    "pallas_mosaic_tpu_v2_ragged_dot": "ragged_dot.pallas_mosaic_tpu_v2",
    "pallas_tpu_batched_rpa": "batched_rpa.pallas_mosaic_tpu",
    "pallas_tpu_csa_gather": "csa_gather.pallas_mosaic_tpu",
    "pallas_tpu_deepseek_rope": "deepseek_rope.pallas_mosaic_tpu",
    "pallas_tpu_dsv4_compressor": "dsv4_compressor.pallas_mosaic_tpu",
    "pallas_tpu_mhc_fused_post_pre": "mhc.pallas_mosaic_tpu",
    "pallas_tpu_mhc_post": "mhc.pallas_mosaic_tpu",
    "pallas_tpu_mhc_pre": "mhc.pallas_mosaic_tpu",
    "pallas_tpu_proj_and_save_state": "proj_and_save_state.pallas_mosaic_tpu",
    "pallas_tpu_ragged_gather_reduce": "ragged_gather_reduce.pallas_mosaic_tpu",
    "pallas_tpu_router_top_k": "router_topk.pallas_mosaic_tpu",
    "proj_and_save_state": "proj_and_save_state.base",
    "ragged_dot": "ragged_dot.base",  # of quantized operands
    "router_top_k": "router_topk.base",
    "splash_attention": f"{_SPLASH}.base",
    "splash_attention_vjp": f"{_SPLASH}.base",
}
KINDS_OF_TOKAMAX = tuple(_MODULES)


def tokamax_call(op: str, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Call:
    """Return the call of an operation of the package.

    Raises:
      OpError: it has no such operation, does not read the record, or is missing.
    """
    if op not in _MODULES:
        raise OpError(f"op {shown(op)} is not known")
    if importlib.util.find_spec("tokamax") is None:
        raise OpError(
            "needs the package tokamax, which has this operation: pip install tokamax, with Python 3.12 or later"
        )
    record = json.dumps({"op": op, "arguments": arguments, "config": config}, sort_keys=True)
    _, arrays = _standardized(record)
    return Call(functools.partial(recorded_operation, record=record), arrays)


@runs_user_code  # any error of the package is a row's reason
def recorded_operation(*arrays: Any, record: str) -> Any:
    """Run an operation of tokamax on its arrays, with the other arguments and the tiles of its record, as JSON."""
    from tokamax._src import config as settings  # pyright: ignore[reportMissingImports]

    function, _ = _standardized(record)
    with settings.cross_compile(True), _as_on_a_tpu():
        return function(arrays)


@functools.lru_cache(maxsize=64)
def _standardized(record: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the operation as a function of its arrays alone, and the arrays."""
    import pydantic  # pyright: ignore[reportMissingImports]
    from tokamax._src import benchmarking  # pyright: ignore[reportMissingImports]
    from tokamax._src.ops import op as operations  # pyright: ignore[reportMissingImports]

    content = json.loads(record)
    name = content["op"]
    module = importlib.import_module(f"tokamax._src.ops.{_MODULES[name]}")
    kind = getattr(module, "".join(part.capitalize() for part in name.split("_")))
    try:
        config = pydantic.TypeAdapter(kind.config_cls).validate_python(content["config"]) if content["config"] else None
        operation = kind().replace(config=config, vjp=None)
        bound = operations._get_arg_spec_adapter(operation).validate_python(content["arguments"])
        contents = listed_contents(_MODULES[name].rpartition(".")[0], content["arguments"])
        call = operations.BoundArguments(operation, {**bound, **contents})
        return benchmarking.standardize_function(operation, *call.args, kwargs=call.kwargs, seed=None)
    except (ValueError, TypeError, KeyError) as error:  # pydantic's error is a ValueError
        raise OpError(f"tokamax does not read its arguments: {str(error).splitlines()[0]}") from error


def _as_on_a_tpu() -> Any:
    """Let tokamax see a TPU as JAX's backend: it chooses the precision of products by it."""
    from unittest import mock

    return mock.patch.object(jax, "default_backend", return_value="tpu")
