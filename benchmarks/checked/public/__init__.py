"""Kernels that others have published, unchanged, with small arguments: of JAX, and of tokamax where it is there."""

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
