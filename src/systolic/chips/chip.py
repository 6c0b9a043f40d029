"""The records that describe a TPU generation: what is published, and the machine model that the simulator runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class UnknownChipError(ValueError):
    """No chip of that name."""


class UnsupportedDtypeError(ValueError):
    """The chip's matrix unit does not take that dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineModel:
    """What the simulator needs to know of **one TensorCore**. Each field has its source in `Chip.sources`.

    Cycles are cycles of `clock_hz`.
    """

    clock_hz: float
    mxu_count: int
    mxu_rows: int  # of the weight tile that a matrix unit holds
    mxu_columns: int
    mxu_rows_per_cycle: Mapping[str, float]  # rows of lhs that one unit takes a cycle, by the listing's operand type
    result_latency_cycles: int  # from the last row into the matrix unit to the first result out
    matmul_queue_depth: int  # `vmatmul`s that may wait before a unit; one more stalls the core
    hbm_bytes_per_s: float  # what a copy engine reaches, reads and writes together, for the whole device
    hbm_run_cycles: float  # a strided copy holds HBM so long for each contiguous piece, besides its bytes
    dma_latency_cycles: int  # from a copy's last byte leaving its source to its flag being seen
    dma_issue_cycles: int  # the core is held up for each copy it starts
    dma_wait_cycles: int  # and for each wait it executes
    branch_delay_slots: int  # bundles after a branch that still run
    granule_bytes: int  # in which copies are counted
    hbm_address_bytes: int  # in which copies count addresses in HBM
    vmem_address_bytes: int  # and in VMEM


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A TPU generation. A *device* is what JAX shows as one: both cores of a v4 or v5p chip, one core of a v7x chip.

    `sources` names for each field, and for each field of `machine` as `machine.NAME`, where the number is from.
    """

    name: str
    title: str
    device_kind: str  # jax.Device.device_kind
    topology: str  # a topology of few devices that libtpu compiles for
    topology_config: str | None  # the chip's configuration in it, where the usual one shows each core as a device
    cores_per_chip: int
    cores_per_device: int
    hbm_bytes_per_chip: int
    hbm_bytes_per_s_per_chip: float
    ici_bytes_per_s_per_chip: float  # of all links to other chips together, both directions of each
    ici_links_per_chip: int
    vmem_bytes_per_core: int
    usable_vmem_bytes_per_core: int  # to which `vmem_limit_bytes` can raise what a kernel may use
    scoped_vmem_bytes: int  # what a kernel may use of VMEM unless `vmem_limit_bytes` raises it
    usable_smem_bytes_per_core: int  # for a kernel's scalars: SMEM less what the program keeps there
    peak_ops_per_s_per_chip: Mapping[str, float]  # by operand dtype
    emulated_dtypes: Mapping[str, str]  # accepted, but converted first: dtype → what it is converted to
    machine: MachineModel
    sources: Mapping[str, str]

    @property
    def devices_per_chip(self) -> int:
        """JAX devices on one chip."""
        return self.cores_per_chip // self.cores_per_device

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Operand dtypes that a dot takes on this chip."""
        return (*self.peak_ops_per_s_per_chip, *self.emulated_dtypes)

    def peak_ops_per_s(self, dtype: str) -> float:
        """Peak operations a second of one **device** for operands of `dtype`, at the rate at which they are computed.

        float32 has the rate of bfloat16: at default precision an f32 dot is one bfloat16 pass.

        Raises:
          UnsupportedDtypeError: a dot does not take that dtype on this chip.
        """
        native = self.emulated_dtypes.get(dtype, dtype)
        if native not in self.peak_ops_per_s_per_chip:
            raise UnsupportedDtypeError(
                f"{self.name} has no matrix multiplication of {dtype}; it takes {', '.join(self.dtypes)}"
            )
        return self.peak_ops_per_s_per_chip[native] / self.devices_per_chip

    @property
    def hbm_bytes_per_s(self) -> float:
        """Published HBM bandwidth of one device."""
        return self.hbm_bytes_per_s_per_chip / self.devices_per_chip

    @property
    def ici_bytes_per_s_per_link(self) -> float:
        """Published bandwidth of one link to another chip, in one direction."""
        return self.ici_bytes_per_s_per_chip / self.ici_links_per_chip / 2
