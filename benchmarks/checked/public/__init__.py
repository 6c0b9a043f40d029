"""Kernels that others have published, unchanged, with small arguments: those that come with JAX."""

from __future__ import annotations

from checked.case import Case
from checked.public import flash, paged, products, small, splash

FAULTS: tuple[Case, ...] = ()
SOUND: tuple[Case, ...] = (*flash.SOUND, *splash.SOUND, *paged.SOUND, *products.SOUND, *small.SOUND)
