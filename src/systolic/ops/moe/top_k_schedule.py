"""The cutting of the kernel that chooses experts, and the sizes that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.kernels.packed_rows import SUBLANES
from systolic.schedule.legality import LANES
from systolic.schedule.sizes import padded

# The kernel's code is k passes over a block's registers, and 512 experts take all 64 that there are. Up to these limits
# no program with the kernel took longer than XLA's, from 8 tokens up; for one token it is as fast within 0.5 %.
# Source: simulated on v5e, v5p, v6e and v7x, the router's product and the choice. On v6e 8 tokens with 2 of 8 experts
# take 3.5 µs, and by XLA 3.6; 16 tokens with 16 of 512 4.9 and 5.5; 2,048 tokens with 8 of 128 8.9 and 30.5.
MAX_EXPERTS, MAX_TOP_K = 512, 16
# Of logits in a tile, 512 KiB: two tiles of 2,048 tokens with 128 experts. Four take 0.3 µs longer on v6e, simulated.
_TILE_LOGITS = 1024 * LANES
# Registers of the blocks that are computed together: four blocks with 128 experts. Simulated on v6e, 512 tokens of them
# take 0.67 µs, by two blocks 0.72, and one after another 1.09.
_REGISTERS, _MAX_TOGETHER = 64, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKSchedule:
    tokens: int  # of a tile: whole blocks of 128
    steps: int
    together: int  # blocks that are computed together; they divide a tile's

    @classmethod
    def of(cls, tokens: int, experts: int) -> TopKSchedule:
        """Return tiles of about the same number of tokens."""
        blocks = -(-tokens // LANES)
        steps = -(-blocks // (_TILE_LOGITS // (padded(experts, LANES) * LANES)))
        blocks = -(-blocks // steps)
        together = min(blocks, _MAX_TOGETHER, max(_REGISTERS * SUBLANES // padded(experts, SUBLANES), 1))
        tile = padded(blocks, together) * LANES
        return cls(tokens=tile, steps=-(-tokens // tile), together=together)


def why_no_kernel(experts: int, top_k: int) -> str | None:
    """Return the reason for which XLA chooses `top_k` of so many experts; None: the kernel does."""
    if experts <= MAX_EXPERTS and top_k <= MAX_TOP_K:
        return None
    return (
        f"the kernel that chooses experts takes {MAX_TOP_K} of {MAX_EXPERTS} at most, not {top_k} of {experts:,}; "
        "XLA sorts all logits of a token"
    )
