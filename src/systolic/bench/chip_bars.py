"""The bars of `systolic bench` that depend on the chip, from `chip_bars.json`.

`docs/matmul.md` names the products that miss theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

from systolic.support.untrusted import read_json, structured


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipBars:
    """The bars of one chip. An empty record asks for nothing."""

    least_share_of_limit: float | None = None  # of the model's limit, by bfloat16 squares from 4096³ on
    # XLA's time over ours, by the groups of the suite `layers`.
    least_layers_ratio: Mapping[str, float] = field(default_factory=dict)
    # By the groups of the suite `moe`: the share of the model's limit, and the best public kernel's time over ours.
    least_moe_share: Mapping[str, float] = field(default_factory=dict)
    least_moe_ratio: Mapping[str, float] = field(default_factory=dict)
    least_moe_xla_ratio: float | None = None  # XLA's time over ours, of the whole suite
    # By the groups of the suite `quantized`: XLA's time over ours, and the best public kernel's.
    least_quantized_ratio: Mapping[str, float] = field(default_factory=dict)
    least_quantized_peer_ratio: Mapping[str, float] = field(default_factory=dict)
    # By the groups of the suite `sparse`, where it is not the share of all chips: the time of the blocks' own products
    # at the published peak, over ours.
    least_sparse_share: Mapping[str, float] = field(default_factory=dict)


@functools.cache
def _all_bars() -> dict[str, ChipBars]:
    text = (resources.files(str(__package__)) / "chip_bars.json").read_text(encoding="utf-8")
    return structured(read_json(text), dict[str, ChipBars])


def chip_bars(chip: str) -> ChipBars:
    """Return the bars of a chip, in any clock state. A chip without an entry has none: saved rows may name any chip."""
    return _all_bars().get(chip.partition("@")[0], ChipBars())
