"""Chips that libtpu cannot target; JAX publishes their peaks and sizes, enough for a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from systolic.chips.chip import UnsupportedDtypeError
from systolic.chips.sources import JAX_TABLE

SOURCE = f"{JAX_TABLE}, of jax 0.12.0.1; a core's numbers times the cores of a chip"


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineChip:
    """A TPU generation that can be neither compiled for nor simulated. All its numbers are from `SOURCE`.

    A *device* is one core, as JAX shows it.
    """

    name: str
    title: str
    device_kind: str  # jax.Device.device_kind
    cores_per_chip: int
    mxu_per_core: int
    mxu_columns: int
    vmem_bytes_per_core: int
    hbm_bytes_per_chip: int
    hbm_bytes_per_s_per_chip: float
    peak_ops_per_s_per_chip: Mapping[str, float]  # by operand dtype

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Operand dtypes with a published peak."""
        return tuple(self.peak_ops_per_s_per_chip)

    @property
    def hbm_bytes_per_s(self) -> float:
        """Published HBM bandwidth of one device."""
        return self.hbm_bytes_per_s_per_chip / self.cores_per_chip

    def peak_ops_per_s(self, dtype: str) -> float:
        """Return the peak operations per second of one device.

        Raises:
          UnsupportedDtypeError: no peak of that dtype is published.
        """
        if dtype not in self.peak_ops_per_s_per_chip:
            raise UnsupportedDtypeError(
                f"no peak of {dtype} is published for {self.title}; of {', '.join(self.dtypes)}"
            )
        return self.peak_ops_per_s_per_chip[dtype] / self.cores_per_chip

    @property
    def no_target(self) -> str:
        """The reason why nothing is compiled for it."""
        return (
            f"chip {self.name!r} has only a roofline: libtpu has no target for {self.title}, so nothing is "
            f"compiled or simulated for it; `systolic chips {self.name}` shows its peaks"
        )


# At default precision a product of float32 runs as one of bfloat16. JAX does not state the rates of other dtypes.
ROOFLINE_CHIPS = {
    chip.name: chip
    for chip in (
        RooflineChip(
            name="8i",
            title="TPU 8i",
            device_kind="TPU8i",
            cores_per_chip=2,
            mxu_per_core=2,
            mxu_columns=256,
            vmem_bytes_per_core=192 * 2**20,
            hbm_bytes_per_chip=309_000_000_000,
            hbm_bytes_per_s_per_chip=8.6e12,
            peak_ops_per_s_per_chip={
                "float32": 1.101e15,
                "bfloat16": 1.101e15,
                "float8_e4m3fn": 8.808e15,
                "float8_e5m2": 8.808e15,
            },
        ),
        RooflineChip(
            name="8t",
            title="TPU 8t",
            device_kind="TPU8t",
            cores_per_chip=1,
            mxu_per_core=2,
            mxu_columns=256,
            vmem_bytes_per_core=128 * 2**20,
            hbm_bytes_per_chip=231_000_000_000,
            hbm_bytes_per_s_per_chip=6.4e12,
            peak_ops_per_s_per_chip={
                "float32": 0.9961e15,
                "bfloat16": 0.9961e15,
                "int8": 0.9961e15,
                "float8_e4m3fn": 5.9769e15,
                "float8_e5m2": 5.9769e15,
                "int4": 11.9538e15,
            },
        ),
    )
}


def known_roofline_chip(name: str) -> RooflineChip | None:
    return ROOFLINE_CHIPS.get(name.strip().lower().removeprefix("tpu").strip().removeprefix("v"))
