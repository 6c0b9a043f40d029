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


_ALL = (
    LessonEntry(name="block_matmul", title="Block multiplication in NumPy", kernels=("block_matmul",)),
    LessonEntry(name="first_matmul", title="The first matmul, as a template", kernels=("first_matmul",)),
    LessonEntry(name="roofline", title="Roofline arithmetic of a product"),
    LessonEntry(
        name="pipelining",
        title="Memory spaces and pipelining: x + y, 8192 × 4096 float32",
        kernels=("pipelining",),
    ),
    LessonEntry(
        name="reductions",
        title="Reductions: the sum of 8 matrices, 512² and 4096² float32",
        kernels=("reductions",),
    ),
    LessonEntry(
        name="scalar_prefetch",
        title="Blocks that are looked up and steps that are skipped: 8192³ bfloat16 in blocks of 512",
        kernels=("scalar_prefetch", "block_sparse", "output_mask"),
    ),
    LessonEntry(
        name="grouped",
        title="Grouped products: rows of 16 groups, 4096 × 2048 × 2048 bfloat16, each with a matrix of its own",
        kernels=("grouped",),
    ),
    LessonEntry(
        name="numbers_on_chip",
        title="Precision: float32 in passes of bfloat16, sums in bfloat16 and float32, int8",
        kernels=("numbers_on_chip",),
    ),
    LessonEntry(
        name="unpacking",
        title="Quantized weights, and what unpacking them costs: 16 × 4096 × 14336, weights of 16, 8 and 4 bits",
        kernels=("unpacking",),
    ),
    LessonEntry(
        name="cores",
        title="Cores: what dimension_semantics brings where a device has two",
        kernels=("cores",),
    ),
    LessonEntry(
        name="refs",
        title="Refs: places in memory instead of values, 8192 × 5120 float32",
        kernels=("refs",),
    ),
    LessonEntry(
        name="pl_kernel",
        title="pl.kernel: x @ y, 4096³ bfloat16, by a pipeline inside a kernel on a mesh of cores",
        kernels=("pl_kernel",),
    ),
    LessonEntry(
        name="between_chips",
        title="Between chips: all-gather and reduce-scatter round a ring, 1 MiB a block, float32",
        kernels=("rings",),
    ),
    LessonEntry(
        name="sparse_core",
        title="SparseCore: 32,768 rows of 512 bytes by their numbers",
        kernels=("sparse_core",),
    ),
)

LESSONS = {entry.name: entry for entry in _ALL}

__all__ = ["LESSONS", "Lesson", "LessonEntry", "Part", "PartResult", "Results"]
