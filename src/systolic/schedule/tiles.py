"""The tile sizes of a product."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.spec import MatmulSpec
from systolic.support.call_errors import WrongCallError


class TilesError(WrongCallError, ValueError):
    """Invalid tiles, or tiles that break the rules of `schedule.legality`."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Tiles:
    """One grid step multiplies `lhs[tile_m, tile_k] @ rhs[tile_k, tile_n]`.

    Raises:
      TilesError: a tile has no elements.
    """

    tile_m: int
    tile_k: int
    tile_n: int

    def __post_init__(self) -> None:
        for name in ("tile_m", "tile_k", "tile_n"):
            if getattr(self, name) < 1:
                raise TilesError(f"{name}={getattr(self, name)}: a tile needs at least one element each way")

    @classmethod
    def cube(cls, size: int) -> Tiles:
        """Return tiles of `size` elements each way."""
        return cls(tile_m=size, tile_k=size, tile_n=size)

    @classmethod
    def whole(cls, spec: MatmulSpec) -> Tiles:
        """Return one tile that holds everything."""
        return cls(tile_m=spec.m, tile_k=spec.k, tile_n=spec.n)

    def __str__(self) -> str:
        return f"{self.tile_m}/{self.tile_k}/{self.tile_n}"

    def grid(self, spec: MatmulSpec) -> tuple[int, int, int]:
        """Return the grid of `(m, n, k)` blocks, k innermost; a last block that is cut short counts."""
        return -(-spec.m // self.tile_m), -(-spec.n // self.tile_n), -(-spec.k // self.tile_k)

    def steps(self, spec: MatmulSpec) -> int:
        """Return the number of grid steps."""
        grid_m, grid_n, grid_k = self.grid(spec)
        return grid_m * grid_n * grid_k
