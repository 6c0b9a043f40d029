"""MaxText's own training step as a `systolic.Step`, with its model, sharding and optimizer unchanged.

    pip install "maxtext[tpu]==0.2.5" libtpu==0.0.50.1
    systolic step examples/maxtext_step.py:train --config llama3.1-8b --batch 1 --seq 2048 \\
        --param use_iota_embed=True --chip v6e --topology 2x4

It needs Python 3.12 or later. What MaxText reads from its YAML file can be given with --param, under the same names.
How many tokens a router sends to each expert is not known: the simulation uses sizes drawn at random.
The tests of systolic do not run it: MaxText brings 235 packages.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from importlib import resources
from typing import Any

import jax
from flax.core.spmd import logical_axis_rules
from jax.sharding import Mesh
from maxtext.configs import pyconfig
from maxtext.layers.attention_mla import MLA
from maxtext.layers.attentions import Attention
from maxtext.layers.linears import MlpBlock
from maxtext.layers.moe import RoutedMoE
from maxtext.layers.nnx_decoders import NNXDecoder
from maxtext.trainers.pre_train import train as trainer
from maxtext.trainers.pre_train import train_compile
from maxtext.utils import accelerator_to_spec_map, maxtext_utils, sharding
from transformer.experts import untrained_sizes

from systolic import Step, typical

# MaxText's modules write no names into the name stacks of operations, so these functions of it are wrapped in scopes.
_SCOPES = (
    ("attention", Attention, "__call__"),
    ("attention", MLA, "__call__"),
    ("mlp", MlpBlock, "__call__"),
    ("experts", RoutedMoE, "__call__"),
    ("embedding", NNXDecoder, "_apply_embedding"),
    ("logits", NNXDecoder, "apply_output_head"),
    ("norms", NNXDecoder, "__call__"),  # and everything that is in no other part of the decoder
    ("loss", trainer, "loss_fn"),
)
PARTS = tuple(dict.fromkeys(part for part, _, _ in _SCOPES))

# Prefixes of MaxText's names of slices.
_CHIPS = {"TPU v4": "v4", "TPU v5": "v5p", "TPU v5 lite": "v5e", "TPU v6 lite": "v6e", "TPU7x": "tpu7x"}


def train(
    mesh: Mesh | None, *, config: str = "llama3.1-8b", batch: float = 1, seq: int = 2048, **settings: Any
) -> Step:
    """Return MaxText's training step on the devices of a mesh, whose axes are MaxText's: data, fsdp, tensor, expert, …

    Args:
      mesh: devices, with the sizes of the axes.
      config: one of MaxText's models; "default" is the model of its base.yml.
      batch: sequences per device.
      seq: tokens per sequence.
      settings: anything else that base.yml names, such as remat_policy="full".

    Raises:
      ValueError: there is no mesh, or MaxText knows no slice with this number of devices.
    """
    if mesh is None:
        raise ValueError("MaxText's step is made for a slice; say which, such as --topology 2x4")
    _wrap_maxtext()
    overrides = {
        "run_name": "step",
        "base_output_directory": tempfile.gettempdir(),
        "model_name": config,
        "per_device_batch_size": batch,
        "max_target_length": seq,
        "attention": "flash",
        "dataset_type": "synthetic",
        "enable_checkpointing": False,
        "skip_jax_distributed_system": True,
        "compile_topology": _slice(mesh),
        "compile_topology_num_slices": 1,
        **{f"ici_{name}_parallelism": size for name, size in mesh.shape.items()},
        **settings,
    }
    base = resources.files("maxtext") / "configs" / "base.yml"
    run_config = pyconfig.initialize(["", str(base), *(f"{name}={value}" for name, value in overrides.items())])
    devices = Mesh(maxtext_utils.create_device_mesh(run_config, mesh.devices.flatten().tolist()), run_config.mesh_axes)
    args, _, shardings, _, model = train_compile.get_shaped_inputs(devices, run_config)
    parameters, shardings = sharding.maybe_update_params_sharding_with_opt(run_config, shardings)
    shardings = sharding.build_zero1_input_state_mesh_shardings(run_config, shardings, parameters)
    data = sharding.get_input_data_sharding(run_config, devices)
    step, given_in, given_out, _, donated = maxtext_utils.get_functional_train_with_signature(
        trainer.train_step, data, shardings, model, run_config, parameters
    )

    @functools.wraps(step)
    def under_rules(*args: Any) -> Any:
        with logical_axis_rules(run_config.logical_axis_rules):
            return step(*args)

    total, _, attention = maxtext_utils.calculate_tflops_training_per_device(run_config, log=False)
    causal = total * 1e12 * devices.size  # MaxText counts half of the attention
    return Step(
        fn=jax.jit(under_rules, in_shardings=given_in, out_shardings=given_out, donate_argnums=donated),
        args=args,
        tokens=int(batch * seq) * devices.size,
        flops=causal + attention * 1e12 * devices.size,
        flops_causal=causal,
        parts=PARTS,
        mesh=devices,
    )


@functools.cache
def _wrap_maxtext() -> None:
    for part, owner, function in _SCOPES:
        setattr(owner, function, _scoped(part, getattr(owner, function)))
    RoutedMoE.permute = _evenly_routed(RoutedMoE.permute)


def _scoped(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def scoped(*args: Any, **named: Any) -> Any:
        with jax.named_scope(part):
            return function(*args, **named)

    return scoped


def _evenly_routed(permute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap MaxText's function that sorts rows by expert: state typical rows of each expert, all equally likely."""

    @functools.wraps(permute)
    def permuted(*args: Any, **named: Any) -> Any:
        rows, order, weights, sizes, *others = permute(*args, **named)
        return rows, order, weights, typical(sizes, untrained_sizes(weights.size, sizes.size)), *others

    return permuted


def _slice(mesh: Mesh) -> str:
    """Return MaxText's name of a slice with this number of devices; MaxText reads only the number from it."""
    chip = _CHIPS[mesh.devices.flat[0].device_kind]
    systems = accelerator_to_spec_map.UserFacingNameToSystemCharacteristics
    size = mesh.devices.size
    slices = {system.devices_per_slice: name for name, system in systems.items() if name.startswith(f"{chip}-")}
    if size not in slices:
        raise ValueError(f"MaxText knows no slice of {size} devices of {chip}; it knows {sorted(slices)}")
    return slices[size]
