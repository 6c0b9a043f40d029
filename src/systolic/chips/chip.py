"""The records that describe a TPU generation: what is published, the machine model that the simulator runs on, and
whatever else this package has to know of it. A chip's file fills them in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from systolic.chips.arithmetic import DotOperands
from systolic.chips.links import Links
from systolic.support.call_errors import WrongCallError


class UnknownChipError(WrongCallError, ValueError):
    """No chip of that name."""


class UnsupportedDtypeError(WrongCallError, ValueError):
    """The chip's matrix unit does not take that dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineModel:
    """The simulator's model of **one TensorCore**. Each field has its source in `Chip.sources`.

    Cycles are cycles of `clock_hz`.
    """

    clock_hz: float
    mxu_count: int
    mxu_rows: int  # of the weight tile that a matrix unit holds
    mxu_columns: int
    mxu_rows_per_cycle: Mapping[str, float]  # rows of lhs that one unit takes a cycle, by the listing's operand type
    result_latency_cycles: int  # from the last row into the matrix unit to the first result out
    weight_push_cycles: float  # a unit takes no rows for this long while a register of weights is pushed into it
    matmul_queue_depth: int  # `vmatmul`s that may wait before a unit; one more stalls the core
    lane_move_cycles: int  # time of a cross-lane unit for a vector register; 0: as the compiler issues them
    hbm_bytes_per_s: float  # what a copy engine reaches, reads and writes together, for the whole device
    hbm_run_cycles: float  # a strided copy holds HBM this long for each contiguous piece, in addition to its bytes
    hbm_turn_cost: float  # a read right after a write, or the reverse, takes this share of the smaller one longer
    hbm_slow_period_s: float  # HBM may be slow at the start of such a period, from the program's start on; 0: never
    hbm_slow_load: float  # it is, if it was busy for this share of the period before
    hbm_slow_s: float  # it is slow for this long
    hbm_slow_share: float  # share of `hbm_bytes_per_s` that is left meanwhile
    dma_latency_cycles: int  # from a copy's last byte leaving its source to its flag being seen
    dma_issue_cycles: int  # the core is held up for each copy it starts
    dma_wait_cycles: int  # and for each wait it executes
    branch_delay_slots: int  # bundles after a branch that still run
    granule_bytes: int  # in which copies are counted
    hbm_address_bytes: int  # in which copies count addresses in HBM
    hbm_pointer_bytes: int  # unit of addresses in HBM that a program is handed: its parameters' and operands'
    vmem_address_bytes: int  # and in VMEM


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseCoreModel:
    """The simulator's model of **one SparseCore**. Each field has its source in `Chip.sources`.

    Cycles are cycles of its `clock_hz`.
    """

    cores_per_device: int
    tiles_per_core: int
    lanes: int  # of a tile's vector registers
    clock_hz: float
    stream_bytes_per_s: float  # of one tile in one direction
    stream_latency_cycles: int  # from a stream's last byte to its flag being seen
    index_cycles: float  # a stream with a list of indices takes at least this long for each


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Constants of `cost.estimate` for the time of a kernel's step that was never simulated.

    Cycles are cycles of one core. A *subtile* is the part of the output tile that is multiplied at a time; a register
    is a vector register of 1024 words of 32 bits; a bundle is one instruction word of straight code.
    """

    fill_cycles: float  # of a subtile: to load the first weights
    drain_cycles_per_row: float  # of a subtile: to get the last results out
    step_cycles: float  # scalar code of one step of the pipeline
    weight_cycles: float  # the fewest that rows take with one tile of weights, which load meanwhile
    weight_gap_cycles: float  # for which rows wait while a tile of bfloat16 weights loads; wider weights take longer
    bundles_per_cycle: float  # of straight code, for each cycle that a subtile's products keep the matrix units busy
    bundles_per_register: float  # and for each register of the subtile's output
    bundles_per_made_register: float  # and for each register of an operand that is computed from what is stored
    highest_bundles: float  # code of six passes over float32, relative to six products
    most_summed_rows: int | None  # above which the vector unit adds up parts along k; None: code never grows by that
    unsummed_bundles: float  # code of products with more rows, over that without


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCosts:
    """Costs of pieces of code that `StepEstimate` does not cover. Each field has its source in `Chip.sources`.

    Cycles are cycles of one core, a register is a vector register of 1024 words of 32 bits.
    """

    call_cycles: Mapping[str, float]  # of the program around the steps of a product, by its pipeline
    grid_step_s: float  # of a step of a grid, in addition to its work
    ring_step_cycles: float  # scalar code of a step of the grouped and quantized kernels
    stretch_cycles: float  # scalar code around one stretch of straight code of the block-sparse kernels
    sum_register_cycles: float  # to add a register of products to the sum in VMEM
    chunk_register_cycles: float  # to add a register of a fill chunk's sum to the sum of the chunks before
    quantized_register_cycles: float  # to quantize a float32 register of rows
    bits_register_cycles: float  # to make 1024 weights of the bits of a float format
    push_bundles: float  # between two registers of weights pushed into the same matrix unit
    emulated_register_bundles: float  # to convert a register before the matrix units take it
    epilogue_share: float  # of an epilogue, that products do not hide


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOffer:
    """A machine of the Cloud TPU API."""

    accelerator_type: str  # of the smallest machine with this chip
    runtime_version: str  # of the software for JAX on it


@dataclass(frozen=True, slots=True, kw_only=True)
class NotOffered:
    """Why the Cloud TPU API makes no machine with this chip, and where to read how to get one."""

    reason: str  # the main clause of a sentence that goes on with "that this command calls"
    instructions_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """A setting of the clock, which a program asks for by compiler flags. A chip has it as `v7x@p7`."""

    name: str  # in lower case, as after the @
    clock_hz: float
    flags: Mapping[str, str]  # the default state needs none
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A TPU generation. A *device* is what JAX shows as one: both cores of a v4 or v5p chip, one core of a v7x chip.

    A generation with several clock states is one chip a state: `v7x` runs in the default state, `v7x@p7` in another.

    `sources` has the source of each field's number; for the fields of `machine`, `sparse_core`, `links` and
    `code_costs` as `machine.NAME` and so on. Clock states name theirs, and compiler flags are the user's.
    """

    name: str  # in lower case; after an @, the clock state if not the default
    aliases: tuple[str, ...]  # other names of it, in lower case, also of accelerator types
    title: str
    device_kind: str  # jax.Device.device_kind
    topology: str  # a topology of few devices that libtpu compiles for
    ring_topology: str  # a topology that is two chips wide, so that a ring goes through all of its devices
    topology_config: str | None  # the chip's configuration in it, where the usual one shows each core as a device
    cores_per_chip: int
    cores_per_device: int
    hbm_bytes_per_chip: int
    hbm_bytes_per_s_per_chip: float
    ici_bytes_per_s_per_chip: float  # of all links to other chips together, both directions of each
    ici_links_per_chip: int
    host_bytes_per_s: float  # of a device's share of the link to the host, in each direction
    vmem_bytes_per_core: int
    usable_vmem_bytes_per_core: int  # to which `vmem_limit_bytes` can raise what a kernel may use
    scoped_vmem_bytes: int  # what a kernel may use of VMEM unless `vmem_limit_bytes` raises it
    usable_smem_bytes_per_core: int  # for a kernel's scalars: SMEM less what the program keeps there
    peak_ops_per_s_per_chip: Mapping[str, float]  # by operand dtype
    peak_clock_hz: float  # at which the published peak is reached
    emulated_dtypes: Mapping[str, str]  # accepted, but converted first: dtype → what it is converted to
    dot_operands: DotOperands  # what a dot in a kernel takes
    vector_bfloat16: bool  # whether the vector units multiply bfloat16 as it is
    unpacks_bytes: bool  # whether a kernel makes bfloat16 of eight bits in a few operations
    moves_arguments: bool  # whether XLA copies a small argument to VMEM before a kernel that may read it from there
    machine: MachineModel
    sparse_core: SparseCoreModel | None  # None: the chip has none that are simulated
    links: Links | None  # None: slices of it are not simulated
    step_estimate: StepEstimate
    code_costs: CodeCosts
    cloud: CloudOffer | NotOffered
    sources: Mapping[str, str] = field(default_factory=dict)
    clock_states: tuple[ClockState, ...] = ()  # the default first; none: the clock is not a setting
    compiler_flags: Mapping[str, str] = field(default_factory=dict)  # of every program for it

    def __hash__(self) -> int:
        # Chips are keys of caches; the mappings in them cannot be hashed, and names tell nearly all chips apart.
        return hash(self.name)

    @property
    def generation(self) -> str:
        """The name without a clock state. Cycles within a core are the same in all states."""
        return self.name.partition("@")[0]

    @property
    def clock_state(self) -> ClockState | None:
        """The clock state that `machine` is in; None where the clock is not a setting."""
        name = self.name.partition("@")[2]
        return next((state for state in self.clock_states if name in ("", state.name)), None)

    @property
    def given_flags(self) -> dict[str, str]:
        """The user's compiler flags: all except those of the clock state, which is part of the chip's name."""
        of_state = self.clock_state.flags if self.clock_state is not None else {}
        return {name: value for name, value in self.compiler_flags.items() if name not in of_state}

    def in_clock_state(self, name: str) -> Chip:
        """Return the chip in another clock state: clock and compiler flags change.

        Bytes a second of HBM stay, so that bytes a cycle change. Latencies stay as they are in cycles: no published
        time says which part of them belongs to HBM's own clock.

        Raises:
          UnknownChipError: the chip has no such state; the message names those it has.
        """
        state = next((state for state in self.clock_states if state.name == name), None)
        if state is None:
            names = ", ".join(f"{self.generation}@{state.name}" for state in self.clock_states)
            states = f"choose from {names}" if names else f"its clock is not a setting: write {self.generation}"
            raise UnknownChipError(f"chip {self.generation!r} has no clock state {name!r}; {states}")
        default = self.clock_states[0]
        return replace(
            self,
            name=self.generation if state is default else f"{self.generation}@{state.name}",
            machine=replace(self.machine, clock_hz=state.clock_hz),
            sources={**self.sources, "machine.clock_hz": state.source},
            compiler_flags=state.flags,
        )

    @property
    def devices_per_chip(self) -> int:
        """JAX devices on one chip."""
        return self.cores_per_chip // self.cores_per_device

    @property
    def ring_devices(self) -> int:
        """JAX devices of `ring_topology`."""
        extents = self.ring_topology.rpartition(":")[2].split("x")
        return math.prod(map(int, extents)) * self.devices_per_chip

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Operand dtypes that a dot takes on this chip."""
        return (*self.peak_ops_per_s_per_chip, *self.emulated_dtypes)

    def peak_ops_per_s(self, dtype: str) -> float:
        """Return the peak operations a second of one **device** for operands of `dtype`, as they are multiplied.

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
