"""The Pallas calls of a traced function: grids, blocks, memories and compiler parameters.

Everything is read from the traced program, and nothing is executed, so the calls may come from any code base.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from systolic.analysis.body import times_inside
from systolic.compat.jaxprs import EquationSite, equation_sites, outside_of_kernels
from systolic.compiler import abstract_arguments, written_at

Role = Literal["prefetch", "input", "output", "scratch"]
# `vmem` includes blocks that Pallas' pipeline brings; from `hbm` the kernel copies itself.
Memory = Literal["vmem", "smem", "hbm", "semaphore", "other"]

_MEMORIES: dict[str, Memory] = {
    "None": "vmem",
    "default": "vmem",
    "vmem": "vmem",
    "smem": "smem",
    "any": "hbm",
    "hbm": "hbm",
    "semaphore_mem": "semaphore",
}


def described(array: Any) -> str:
    """Describe anything that has a dtype and a shape: "bfloat16[1024,512]"."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def argument_texts(args: Sequence[Any]) -> tuple[str, ...]:
    """Describe each array among arguments, which may be pytrees."""
    import jax

    return tuple(described(leaf) for leaf in jax.tree.leaves(abstract_arguments(args)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One array that a kernel sees, whole or block by block."""

    name: str  # the kernel's parameter
    role: Role
    memory: Memory
    shape: tuple[int, ...]  # sizes of the whole array
    dtype: str
    # Elements of one block along each dimension of the array; 1 where the dimension is squeezed.
    block: tuple[int, ...]
    squeezed: tuple[int, ...] = ()  # dimensions that the kernel does not see
    by_element: tuple[int, ...] = ()  # dimensions along which the index map gives elements, not blocks
    buffers: int | None = None  # copies in VMEM that `pl.Buffered` asked for; None: Pallas decides
    # True if its block specification depends on the grid, so that a pipeline brings it.
    is_cut: bool = False

    @property
    def described(self) -> str:
        """The whole array: "bfloat16[1024,512]"."""
        return described(self)

    @property
    def block_elements(self) -> int:
        """Elements of one block."""
        return math.prod(self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One Pallas call in the text of a function."""

    name: str  # the name that the launcher gave the kernel, else the name of its function
    # "file.py:12 in launcher", the line of the user's source; "" if it is not known.
    where: str
    grid: tuple[int | None, ...]  # steps along each axis; None if the number is a traced value
    # "parallel" or "arbitrary" for each grid axis; () if the launcher states none. Pallas treats the axes that
    # `jax.vmap` makes as parallel.
    semantics: tuple[str, ...]
    operands: tuple[Operand, ...]  # the kernel's parameters: prefetched scalars, inputs, outputs, scratch
    vmem_limit_bytes: int | None  # the limit that the launcher set; None: the compiler's own
    has_cost_estimate: bool  # the launcher gave XLA a cost estimate
    # Pairs of an input and the output that reuses its memory, as positions among inputs and outputs.
    aliases: tuple[tuple[int, int], ...]
    body: Any  # the kernel's jaxpr
    equation: Any  # the call in the function's jaxpr
    # The path to it: positions of equations and numbers of branches, outermost first; see `compiler.PallasOperands`.
    site: tuple[int, ...]
    executions: int | None  # how often the function runs it; None: that depends on values
    vmapped: tuple[int, ...] = ()  # grid axes that `jax.vmap` made: `pl.program_id` does not count them
    # Positions of outputs whose results are not used: launchers request memory in this way.
    unused: tuple[int, ...] = ()

    @property
    def own_axes(self) -> tuple[int, ...]:
        """The grid axis of each number that `pl.program_id` takes."""
        return tuple(axis for axis in range(len(self.grid)) if axis not in self.vmapped)

    def of(self, *roles: Role) -> tuple[Operand, ...]:
        """Pick the operands of these roles, in order."""
        return tuple(operand for operand in self.operands if operand.role in roles)

    @property
    def steps(self) -> int | None:
        """Steps of the whole grid; None if the number is a traced value."""
        return None if None in self.grid else math.prod(size for size in self.grid if size is not None)


def kernel_calls(closed_jaxpr: Any) -> list[KernelCall]:
    """List the Pallas calls of a traced function in the order of its text, calls in branches and loops once."""
    sites = equation_sites(closed_jaxpr, outside_of_kernels)
    return [_call(site) for site in sites if site.equation.primitive.name == "pallas_call"]


def executions(site: EquationSite) -> int | None:
    """Count how often one execution of a function runs an equation in it; None: that depends on values."""
    times: int | None = 1
    for caller in site.callers:
        times = None if caller.primitive.name == "cond" else times_inside(caller, times)
    return times


def _unused_results(site: EquationSite) -> tuple[int, ...]:
    taken = {id(atom) for equation in site.jaxpr.eqns for atom in equation.invars} | set(map(id, site.jaxpr.outvars))
    return tuple(at for at, result in enumerate(site.equation.outvars) if id(result) not in taken)


def _call(site: EquationSite) -> KernelCall:
    equation = site.equation
    params = equation.params
    mapping, body = params["grid_mapping"], params["jaxpr"]
    options = params.get("compiler_params")
    names = _parameter_names(body)
    prefetched = mapping.num_index_operands
    blocks = len(mapping.block_mappings)
    operands = []
    for at, variable in enumerate(body.invars):
        if at < prefetched or at >= prefetched + blocks:
            operands.append(_whole(variable.aval, names[at], "prefetch" if at < prefetched else "scratch"))
        else:
            role: Role = "input" if at < prefetched + mapping.num_inputs else "output"
            operands.append(_cut(mapping.block_mappings[at - prefetched], names[at], role, mapping.grid))
    semantics = [_word(axis_semantics) for axis_semantics in getattr(options, "dimension_semantics", None) or ()]
    vmapped = tuple(mapping.vmapped_dims)
    if vmapped:
        remaining = iter(semantics or ["arbitrary"] * len(mapping.grid))
        semantics = [
            "parallel" if axis in vmapped else next(remaining, "arbitrary") for axis in range(len(mapping.grid))
        ]
    return KernelCall(
        name=params.get("name") or _function_name(body),
        where=written_at(equation),
        grid=tuple(size if isinstance(size, int) else None for size in mapping.grid),
        semantics=tuple(semantics),
        operands=tuple(operands),
        vmem_limit_bytes=getattr(options, "vmem_limit_bytes", None),
        has_cost_estimate=params.get("cost_estimate") is not None,
        aliases=tuple((into - prefetched, out) for into, out in params.get("input_output_aliases", ())),
        body=body,
        equation=equation,
        site=site.path,
        executions=executions(site),
        vmapped=vmapped,
        unused=_unused_results(site),
    )


def _whole(aval: Any, name: str, role: Role) -> Operand:
    memory = _memory(aval)
    shape = tuple(getattr(aval, "shape", ()))
    return Operand(
        name=name,
        role=role,
        memory=memory,
        shape=shape,
        dtype="semaphore" if memory == "semaphore" else str(aval.dtype),
        block=shape,
    )


def _cut(block_mapping: Any, name: str, role: Role, grid: Sequence[Any]) -> Operand:
    array = block_mapping.array_aval
    sizes, squeezed, by_element = [], [], []
    for at, block in enumerate(block_mapping.block_shape):
        kind = type(block).__name__
        if kind == "Squeezed" or block is None:
            squeezed.append(at)
        elif kind in ("Element", "BoundedSlice"):
            by_element.append(at)
        sizes.append(1 if at in squeezed else _size(block))
    memory = _memory(block_mapping.transformed_block_aval)
    mode = block_mapping.pipeline_mode
    return Operand(
        name=name,
        role=role,
        memory=memory,
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        block=tuple(sizes),
        squeezed=tuple(squeezed),
        by_element=tuple(by_element),
        buffers=getattr(mode, "buffer_count", None),
        is_cut=memory in ("vmem", "smem") and len(grid) > 0,
    )


def _size(block: Any) -> int:
    return int(getattr(block, "block_size", block))


def _memory(aval: Any) -> Memory:
    space = getattr(aval, "memory_space", None)
    return _MEMORIES.get(_word(space), "other")


def _word(value: Any) -> str:
    """Write a name or a member of an enumeration as text: 'parallel', 'vmem'."""
    return str(getattr(value, "value", value)).lower() if value is not None else "None"


def _parameter_names(body: Any) -> list[str]:
    described = getattr(body, "debug_info", None)
    names = list(getattr(described, "arg_names", None) or ())
    return [names[at] if at < len(names) and names[at] else f"operand {at}" for at in range(len(body.invars))]


def _function_name(body: Any) -> str:
    described = getattr(body, "debug_info", None)
    return getattr(described, "func_name", None) or "kernel"
