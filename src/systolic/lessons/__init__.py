"""The lessons: each has one idea, a kernel that can be read and pasted, and numbers that show the idea.

The files of `kernels/` need JAX and NumPy and nothing of this package. A lesson's own module names the sizes,
runs the kernels, and puts the results into words. The ladder of matmul kernels is in `ladder/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from systolic.chips import Chip
from systolic.lessons.lesson import Lesson, Part, PartResult, Results


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonEntry:
    """A row of the table of lessons."""

    name: str  # its module's, which has `lesson(chips)`
    title: str  # one line
    kernels: tuple[str, ...] = ()  # files of `kernels/`, in reading order

    @property
    def module(self) -> str:
        return f"{__name__}.{self.name}"

    @property
    def files(self) -> tuple[str, ...]:
        """Its modules, kernels first."""
        return (*(f"{__name__}.kernels.{kernel}" for kernel in self.kernels), self.module)

    def run(self, chips: Sequence[Chip]) -> Lesson:
        """Run the lesson. Listing lessons imports none of them, and the roofline needs no JAX."""
        return import_module(self.module).lesson(chips)


def _lesson(name: str, title: str, *kernels: str) -> LessonEntry:
    """Return a lesson with these files of `kernels/`, or with the one of its own name."""
    return LessonEntry(name=name, title=title, kernels=kernels or (name,))


_ALL = (
    _lesson("block_matmul", "Block multiplication in NumPy"),
    _lesson("first_matmul", "The first matmul, as a template"),
    LessonEntry(name="roofline", title="Roofline arithmetic of a product"),
    _lesson("pipelining", "Memory spaces and pipelining: x + y, 8192 × 4096 float32"),
    _lesson("reductions", "Reductions: the sum of 8 matrices, 512² and 4096² float32"),
    _lesson(
        "scalar_prefetch",
        "Blocks that are looked up and steps that are skipped: 8192³ bfloat16 in blocks of 512",
        "scalar_prefetch",
        "block_sparse",
        "output_mask",
    ),
    _lesson(
        "grouped", "Grouped products: rows of 16 groups, 4096 × 2048 × 2048 bfloat16, each with a matrix of its own"
    ),
    _lesson(
        "fused_gather",
        "Fused gather: 8,192 rows by their numbers inside a product, 2048 × 2048 bfloat16",
        "take_then_multiply",
        "fetch_then_multiply",
        "fetch_while_multiplying",
        "rows_from_vmem",
    ),
    _lesson("numbers_on_chip", "Precision: float32 in passes of bfloat16, sums in bfloat16 and float32, int8"),
    _lesson(
        "unpacking", "Quantized weights, and what unpacking them costs: 16 × 4096 × 14336, weights of 16, 8 and 4 bits"
    ),
    _lesson("cores", "Cores: what dimension_semantics brings where a device has two"),
    _lesson("refs", "Refs: places in memory instead of values, 8192 × 5120 float32"),
    _lesson("pl_kernel", "pl.kernel: x @ y, 4096³ bfloat16, by a pipeline inside a kernel on a mesh of cores"),
    _lesson(
        "between_chips", "Between chips: all-gather and reduce-scatter round a ring, 1 MiB a block, float32", "rings"
    ),
    _lesson(
        "across_chips",
        "Across chips: all rows of x times columns of w, a chunk of 256 × 4096 per device, bfloat16",
        "gather_then_multiply",
        "ring_matmul",
        "ring_both_ways",
    ),
    _lesson("sparse_core", "SparseCore: 32,768 rows of 512 bytes by their numbers"),
)

LESSONS = {entry.name: entry for entry in _ALL}

__all__ = ["LESSONS", "Lesson", "LessonEntry", "Part", "PartResult", "Results"]
