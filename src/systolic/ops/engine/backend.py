"""The backend of a call: a Pallas kernel, compiled or interpreted, or XLA."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from jax import Array
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import DEFAULT_CHIP, Chip
from systolic.chips import chip as chip_named
from systolic.compat import interpret_mode_is_forced, interpreted_effects
from systolic.ops.engine.target import for_a_tpu, target_chip
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import SpecError
from systolic.support.choices import unknown_name

Implementation = Literal["pallas", "xla", "interpret"] | pltpu.InterpretParams | None
_IMPLEMENTATIONS = (None, "pallas", "xla", "interpret")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """An implementation, the chip whose tiles it uses, and the caller's tiles."""

    implementation: Implementation  # None: Pallas where the program runs on a TPU, else XLA
    chip: Chip | None  # whose tiles are used; None if tracing sees no TPU and the caller names none
    tiles: Tiles | KernelConfig | None

    @property
    def interpret(self) -> bool | pltpu.InterpretParams:
        """Pallas' argument `interpret`: False if the kernel is compiled."""
        if self.implementation is None or self.implementation in ("pallas", "xla"):
            return False
        return pltpu.InterpretParams() if isinstance(self.implementation, str) else self.implementation

    def on_tpu(self, array: Array) -> Array:
        """Return the array; lowering it for anything but a TPU raises if the kernel has to run on one."""
        return for_a_tpu(array) if self.implementation == "pallas" and not interpret_mode_is_forced() else array

    @property
    def in_kernel(self) -> bool:
        """True if a kernel may compute the product, and so the functions that are fused into it."""
        return self.implementation != "xla" and self.chip is not None

    @property
    def effects(self) -> frozenset[Any]:
        return interpreted_effects() if self.interpret else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The base of a product's static parameters."""

    backend: Backend

    def anew(self, **changes: Any) -> Self:
        """Return another product by the same backend, without the tiles that the caller gave for this one."""
        return replace(self, backend=replace(self.backend, tiles=None), **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivatedProduct(Computed):
    """The base of static parameters of a product whose sum goes through at most one function."""

    dtype_out: str
    activation: str = ""  # its name
    function: Callable[..., Any] | None = None  # and its function


@dataclass(frozen=True, slots=True, kw_only=True)
class OfProduct:
    """The base of a product's derivatives, for `engine.linear` and `engine.derivative`."""

    product: Any

    @property
    def effects(self) -> frozenset[Any]:
        return self.product.backend.effects


BY_XLA = Backend(implementation="xla", chip=None, tiles=None)


def backend_of(implementation: Implementation, chip: str | Chip | None, tiles: Any) -> Backend:
    """Check the arguments of a call that choose its backend.

    Raises:
      SpecError: an unknown implementation, a chip that is not a chip, or tiles that are not three numbers.
      UnknownChipError: no such chip.
    """
    if implementation not in _IMPLEMENTATIONS and not isinstance(implementation, pltpu.InterpretParams):
        names = (name for name in _IMPLEMENTATIONS if name is not None)
        raise SpecError(f"{unknown_name('implementation=', implementation, names)}, or leave it out")
    if chip is not None and not isinstance(chip, (str, Chip)):
        raise SpecError(f"chip={chip!r} is not a chip; use a name such as v5e, or a systolic.Chip")
    named_chip = None if chip is None else chip_named(chip)
    if named_chip is None and implementation != "xla":
        named_chip = target_chip()
    if named_chip is None and implementation not in (None, "xla"):
        named_chip = chip_named(DEFAULT_CHIP)  # interpret mode works with any chip's tiles
    if tiles is not None and not isinstance(tiles, (Tiles, KernelConfig)):
        try:
            tile_m, tile_k, tile_n = map(operator.index, tiles)
        except (TypeError, ValueError) as error:
            raise SpecError(f"tiles={tiles!r}; use three whole numbers: (tile_m, tile_k, tile_n)") from error
        tiles = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
    return Backend(implementation=implementation, chip=named_chip, tiles=tiles)
