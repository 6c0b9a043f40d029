"""Published kernels, unchanged, with small arguments: from JAX, and from tokamax if it is installed."""

from __future__ import annotations

from checked.case import Case
from checked.public import flash, paged, products, small, splash, tokamax_kernels

FAULTS: tuple[Case, ...] = ()
MISSING = tokamax_kernels.MISSING
SOUND: tuple[Case, ...] = (
    *flash.SOUND,
    *splash.SOUND,
    *paged.SOUND,
    *products.SOUND,
    *small.SOUND,
    *tokamax_kernels.SOUND,
)
