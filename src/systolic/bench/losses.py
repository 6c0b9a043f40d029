"""Softmax losses of a race: output layers of language models, forward and with gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from systolic.bench.cases import Case
from systolic.ops.cross_entropy.spec import CrossEntropySpec, LossKind

# hidden_size and vocab_size of each model's published config.json.
LAYERS: tuple[tuple[str, int, int], ...] = (
    ("llama3-8b", 4096, 128_256),
    ("qwen3-8b", 4096, 151_936),
    ("gpt-oss-20b", 2880, 201_088),
    ("gemma3-4b", 2560, 262_144),
    ("llama3-70b", 8192, 128_256),
)
TOKENS = (2048, 4096, 8192, 16384, 32768)
_KINDS: tuple[tuple[LossKind, bool, str], ...] = (  # a spec's kind, if logits are kept, and the rows' group
    ("forward", False, "forward"),
    ("gradients", False, "with gradients"),
    ("gradients", True, "keeping logits"),
)


def losses(dtype: str) -> Iterator[Case]:
    """Yield each layer with each number of tokens, for floats of 16 and 32 bits."""
    if dtype not in ("bfloat16", "float32"):
        return
    for (kind, keep_logits, group), (model, k, n), m in itertools.product(_KINDS, LAYERS, TOKENS):
        spec = CrossEntropySpec(m=m, k=k, n=n, dtype=dtype, kind=kind, keep_logits=keep_logits)
        yield Case(suite="loss", group=group, name=f"{model} {group} {m}", spec=spec, series=f"{model} {group}")
