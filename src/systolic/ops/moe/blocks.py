"""The experts of a device, and the blocks of rows in which kernels that find tokens in VMEM multiply their matrices."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import Chip
from systolic.cost.roofline import mxu_rows_per_cycle
from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.moe.matrices import MatrixForm
from systolic.ops.moe.schedule import COPY_CYCLES, REGISTER_CYCLES
from systolic.schedule.legality import LANES, legal_sides
from systolic.schedule.sizes import padded
from systolic.spec import dtype_bytes

ROW_TILE = 16  # rows of a register of 16 bits; rows of an expert begin at a whole one
ROW_COLUMNS = 1024  # of one register; a tile of columns has at most so many
_BLOCK_COLUMNS = 512  # of a product at most
WEIGHT_SLOTS = 3
STAGES = 2  # blocks of the first products on their way to HBM
MAX_CHOICES = 2**17  # whose codes take half of SMEM
_SMALL_ROWS = 64
_MAX_ROWS = 640  # of a block
# Rows of a block over their mean: about two and a half deviations of 256 rows drawn at random.
_BLOCK_SHARE = 1.15
# Cycles in which 1,024 products of a row are added to sums, in the code of a product; of a step without its products;
# and in which a register of sums is rounded.
# Source: simulated on v6e, 256 rows in products of 320 × 1,536 × 512, and pieces of 256 × 512.
SUM_CYCLES, STEP_CYCLES, ROUND_CYCLES = 2.5, 230, 2
# Cycles in which 1,024 codes are converted for a block.
# Source: simulated on v6e and v7x, 128 tokens of Qwen3-30B, int4 in blocks of 128 and e4m3 in squares: 0.23 to 0.29.
_CONVERT_CYCLES = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """Activated products of the rows of tokens that all devices send to this one's experts."""

    devices: int
    tokens: int  # of all devices
    choices: int  # of all tokens
    experts: int  # of this device
    d: int
    f: int
    products: int  # 2: gate and up
    dtype: str  # of rows
    matrices: MatrixForm  # of gate and up
    down: MatrixForm

    @property
    def hops(self) -> int:
        """Hops to the opposite device."""
        return self.devices // 2

    @property
    def early_hops(self) -> int:
        """Hops of the first slab before the kernel, while choices are sorted: the others while weights arrive.

        Source: simulated on v6e 2x4, 4,096 tokens: choices are sorted in the time of two hops of four, and the weights
        for which there is room arrive in the time of the other two.
        """
        return max(self.hops // 2, 1)

    @property
    def mean_rows(self) -> int:
        return -(-self.choices // self.devices)

    @property
    def rows(self) -> int:
        """Room for the rows of all choices, and for those between two experts."""
        return padded(self.choices + (ROW_TILE - 1) * self.experts, ROW_TILE)

    @property
    def flops(self) -> int:
        return 2 * self.mean_rows * self.d * self.f * self.products

    @property
    def least_hbm_bytes(self) -> int:
        weights_bytes = self.experts * self.products * self.matrices.bytes(self.d, self.f)
        return weights_bytes + self.mean_rows * self.f * dtype_bytes(self.dtype)


def block_rows(spec: ExpertsSpec, share: float = _BLOCK_SHARE) -> tuple[int, int]:
    """Return the rows of a large and of a small block.

    Args:
      share: of the rows of a large block over an expert's mean.
    """
    mean = -(-spec.mean_rows // spec.experts)
    return min(max(padded(int(mean * share), 2 * ROW_TILE), _SMALL_ROWS), _MAX_ROWS), _SMALL_ROWS


def product_columns(columns: int, chip: Chip) -> int:
    """Return the columns of a product: whole matrix units if possible, where half of one takes as long."""
    sides = [side for side in legal_sides(columns, LANES) if side <= _BLOCK_COLUMNS]
    whole = [side for side in sides if side % chip.machine.mxu_columns == 0]
    return max(whole or sides)


def small_rows(rows: tuple[int, int]) -> int:
    """Return the rows of an expert up to which small blocks multiply them: one, or two that are less than a large one.

    Every block takes all weights into the matrix units, and converts codes.
    """
    large, small = rows
    return 2 * small if large > 4 * small else small


def collect_cycles(columns: int) -> float:
    """Return the cycles in which columns of a row are copied to its block."""
    return COPY_CYCLES + REGISTER_CYCLES * -(-columns // (LANES * SUBLANES))


def product_cycles(spec: ExpertsSpec, matrices: MatrixForm, rows: tuple[int, int], k: int, n: int, chip: Chip) -> float:
    """Return the cycles in which matrix units take the weights of a product, and the blocks of rows for each."""
    machine, (large, small) = chip.machine, rows
    mean = -(-spec.mean_rows // spec.experts)
    count = max(-(-(mean - small_rows(rows)) // large), 0)
    blocks = [large] * count + [small] * max(-(-(mean - count * large) // small), 0)
    deep = min(machine.mxu_rows, matrices.block or k)  # sums of blocks of k have scales of their own
    tiles = -(-k // deep) * -(-n // machine.mxu_columns) / machine.mxu_count
    push_bytes = deep * machine.mxu_columns * dtype_bytes(matrices.pushed(spec.dtype))
    pushes = push_bytes / 4096 * machine.weight_push_cycles
    rows_per_cycle = mxu_rows_per_cycle(spec.dtype, chip)
    converted = 0 if matrices.block is None else len(blocks) * k * n / 1024 * _CONVERT_CYCLES
    return spec.experts * (tiles * sum(size / rows_per_cycle + pushes for size in blocks) + converted)
