"""Read traced functions, without judging them: Pallas calls, grids, blocks, bodies and memory.

    calls      the Pallas calls with their grids, operands and compiler parameters
    visits     the blocks that a grid visits, step by step
    windows    the blocks that the pipeline fetches at each step, and the copies of a block in VMEM
    body       the equations of a kernel's body, and the operations in one step
    lines      the operations of each line of the source, over the whole grid
    step_walk  what is known of memory and scalars at one step
    layout     how arrays lie in VMEM and SMEM
    vmem       the VMEM that a kernel needs, estimated

Other rooms import from here only.
"""

from systolic.analysis.body import OpCount, dot_flops, op_count, read_references
from systolic.analysis.calls import KernelCall, Operand, argument_texts, described, kernel_calls
from systolic.analysis.layout import SUBLANES, array_tile_rows, element_bits, packing, scalar_bytes
from systolic.analysis.lines import KernelOps, LineOps, flops_outside_kernels, kernel_ops
from systolic.analysis.step_walk import Memory, StepWalk, Unwritten
from systolic.analysis.visits import CallOnGrid, GridVisits, Visits, calls_on_grids, first_executions
from systolic.analysis.vmem import EstimatedBuffer, VmemEstimate, spilled_bytes, vmem_estimate
from systolic.analysis.windows import (
    PREFETCHED,
    block_mapping_of,
    index_axes,
    index_divisors,
    is_whole,
    window_copies,
)
