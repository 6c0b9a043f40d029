"""Whole layers of experts, from the router's logits to the sum of what each token's experts return."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from systolic.bench.cases import EXPERT, Case
from systolic.bench.contests import MoeSliceContest
from systolic.bench.moe_layer_spec import LayerSpec
from systolic.chips import SliceError
from systolic.spec import SliceMesh

# Hidden size, intermediate size of an expert, experts, and experts of a token, of the models' published config.json.
LAYERS: tuple[tuple[str, int, int, int, int], ...] = (
    ("mixtral-8x7b", 4096, 14336, 8, 2),
    ("qwen3-30b", 2048, 768, 128, 8),
    ("qwen3-235b", 4096, 1536, 128, 8),
    ("gpt-oss-120b", 2880, 2880, 128, 4),
    ("deepseek-v3", 7168, 2048, 256, 8),
    ("qwen3-coder-480b", 6144, 2560, 160, 8),
    ("ling-2.6-flash", 4096, 1024, 256, 8),
)
TOKENS = (128, 512, 2048, 8192)
SUITE = "moe-layer"
# Also with quantized experts, by the name of the format. A square of 128 × 128 shares a scale in DeepSeek-V3.
_INT8 = ("int8", {"dtype_rhs": "int8"})
_SQUARES = ("e4m3/128x128", {"dtype_rhs": "float8_e4m3fn", "rhs_block": 128, "scale_columns": 128})
_W8A8 = ("w8a8", {"dtype_rhs": "int8", "quantize_lhs": "int8"})
_FORMATS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "mixtral-8x7b": (_W8A8,),
    "qwen3-30b": (
        _INT8,
        ("e4m3", {"dtype_rhs": "float8_e4m3fn"}),
        _SQUARES,
        ("int4/128", {"dtype_rhs": "int4", "rhs_block": 128}),
    ),
    "deepseek-v3": (_SQUARES,),
}
# Further cases, for eight devices.
_SLICE_MODEL, _SLICE_TOKENS, _SLICE_FORMATS = "qwen3-235b", (1024, 4096), (("", {}), _INT8, _SQUARES)
_MAX_TOKENS_HBM_BOUND = 512  # HBM binds up to here: each expert multiplies a few rows by all of its weights
_TRAINED_MODEL, _TRAINED_TOKENS = "qwen3-30b", (2048, 8192)  # also with gradients


def moe_layers(dtype: str) -> Iterator[Case]:
    """Yield each layer with each number of tokens, for floats of 16 and 32 bits."""
    if dtype not in ("bfloat16", "float32"):
        return
    quantized = [(layer, form) for layer in LAYERS for form in _FORMATS.get(layer[0], ())]
    layers = [*((layer, ("", {})) for layer in LAYERS), *quantized]
    on_slices = [(layer, form) for layer in LAYERS if layer[0] == _SLICE_MODEL for form in _SLICE_FORMATS]
    sizes = [*itertools.product(layers, TOKENS), *itertools.product(on_slices, _SLICE_TOKENS)]
    for ((model, k, n, experts, top_k), (form, quantized_as)), m in sizes:
        group = " ".join(filter(None, (form, f"layer of {'few' if m <= _MAX_TOKENS_HBM_BOUND else 'many'} tokens")))
        name = " ".join(filter(None, (model, form, "layer")))
        spec = LayerSpec(m=m, k=k, n=n, experts=experts, top_k=top_k, dtype=dtype, **quantized_as)
        yield Case(suite=SUITE, group=group, name=f"{name} {m}", spec=spec, series=name)
        if name == f"{_TRAINED_MODEL} layer" and m in _TRAINED_TOKENS:
            name = f"{name} and gradients"
            spec = replace(spec, backward=True)
            yield Case(suite=SUITE, group="layer and gradients", name=f"{name} {m}", spec=spec, series=name)


def layers_on_slice(cases: Sequence[Case], topology: str, mesh: Mapping[str, int]) -> list[Case]:
    """Return layers whose experts and tokens are cut over a slice.

    Raises:
      SliceError: the mesh has another axis than `expert`; or a layer has gradients, whose programs are of one device.
      SpecError: it does not divide the experts or the tokens.
    """
    if list(mesh) != [EXPERT] or mesh[EXPERT] < 2:
        axes = ",".join(f"{name}={size}" for name, size in mesh.items())
        raise SliceError(
            f"suite {SUITE} is cut over one axis of several devices, {EXPERT}, not {axes}: --mesh {EXPERT}=8"
        )
    if alone := [case for case in cases if case.spec.backward]:
        raise SliceError(
            f"{alone[0].name} runs on one device: leave --topology and --mesh out, or pick layers without gradients, "
            f"such as --only {_SLICE_MODEL}"
        )
    contest = MoeSliceContest(slice_mesh=SliceMesh.of(topology, **mesh))
    return [replace(case, contest=contest, spec=replace(case.spec, devices=mesh[EXPERT])) for case in cases]
