"""The Pallas calls of a traced function: grid, blocks, memories, and what the compiler was told.

Nothing is executed here: everything comes out of the traced program, so a call may be anybody's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from systolic.compiler import inner_jaxprs, written_at

Role = Literal["prefetch", "input", "output", "scratch"]
# `vmem` is also the memory of a block that Pallas' pipeline brings; `hbm` what the kernel copies from by itself.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One array that a kernel sees, whole or block by block.

    Attributes:
      name: of the kernel's parameter.
      origin: of the launcher's argument that it is cut from, in Pallas' words; "" for scratch.
      shape: of the whole array.
      block: elements of one block along each dimension of the array; 1 where the dimension is squeezed.
      squeezed: dimensions that the kernel does not see.
      by_element: dimensions along which the index map gives elements, not blocks.
      buffers: copies in VMEM that were asked for; None: as Pallas decides.
      is_cut: whether it has a block specification that depends on the grid, that is, whether a pipeline brings it.
    """

    name: str
    role: Role
    memory: Memory
    origin: str
    shape: tuple[int, ...]
    dtype: str
    block: tuple[int, ...]
    squeezed: tuple[int, ...] = ()
    by_element: tuple[int, ...] = ()
    buffers: int | None = None
    is_cut: bool = False

    @property
    def visible_block(self) -> tuple[int, ...]:
        """The block as the kernel sees it."""
        return tuple(size for at, size in enumerate(self.block) if at not in self.squeezed)

    @property
    def block_elements(self) -> int:
        """Elements of one block."""
        return math.prod(self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One Pallas call in the text of a function.

    Attributes:
      name: of the kernel: what it was called in the launcher, else the function's.
      where: "file.py:12 in launcher", the line of the user's source; "" where it is not known.
      grid: steps along each axis; None where the number is a value.
      semantics: of each grid axis, "parallel" or "arbitrary"; () if the launcher said nothing. Axes that `jax.vmap`
        made are parallel, as Pallas has it.
      operands: as the kernel's parameters: prefetched scalars, inputs, outputs, scratch.
      vmem_limit_bytes: that the launcher set; None: the compiler's own.
      has_cost_estimate: whether XLA was told what the kernel costs.
      aliases: pairs of an input and the output that takes its place, counted among inputs and outputs.
      body: the kernel's jaxpr.
      equation: of the call in the function's jaxpr.
      site: the way to it: positions of equations, outermost first; see `compiler.PallasOperands`.
      vmapped: grid axes that `jax.vmap` made: `pl.program_id` does not count them.
    """

    name: str
    where: str
    grid: tuple[int | None, ...]
    semantics: tuple[str, ...]
    operands: tuple[Operand, ...]
    vmem_limit_bytes: int | None
    has_cost_estimate: bool
    aliases: tuple[tuple[int, int], ...]
    body: Any
    equation: Any
    site: tuple[int, ...]
    vmapped: tuple[int, ...] = ()

    @property
    def own_axes(self) -> tuple[int, ...]:
        """The grid axis of each number that `pl.program_id` takes."""
        return tuple(axis for axis in range(len(self.grid)) if axis not in self.vmapped)

    def of(self, *roles: Role) -> tuple[Operand, ...]:
        """The operands of these roles, in order."""
        return tuple(operand for operand in self.operands if operand.role in roles)

    @property
    def steps(self) -> int | None:
        """Steps of the whole grid; None where that is a value."""
        return None if None in self.grid else math.prod(size for size in self.grid if size is not None)


def kernel_calls(closed_jaxpr: Any) -> list[KernelCall]:
    """Every Pallas call in a traced function, in the order of its text; those in branches and loops once each."""
    return [_call(equation, site) for equation, site in _equations(closed_jaxpr.jaxpr, ())]


def _equations(jaxpr: Any, path: tuple[int, ...]) -> Iterator[tuple[Any, tuple[int, ...]]]:
    for number, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name == "pallas_call":
            yield equation, (*path, number)
            continue
        for inner in inner_jaxprs(equation.params):
            yield from _equations(inner.jaxpr, (*path, number))


def _call(equation: Any, site: tuple[int, ...]) -> KernelCall:
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
    semantics = [_word(each) for each in getattr(options, "dimension_semantics", None) or ()]
    vmapped = tuple(mapping.vmapped_dims)
    if vmapped:
        own = iter(semantics or ["arbitrary"] * len(mapping.grid))
        semantics = ["parallel" if axis in vmapped else next(own, "arbitrary") for axis in range(len(mapping.grid))]
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
        site=site,
        vmapped=vmapped,
    )


def _whole(aval: Any, name: str, role: Role) -> Operand:
    memory = _memory(aval)
    shape = tuple(getattr(aval, "shape", ()))
    return Operand(
        name=name,
        role=role,
        memory=memory,
        origin="",
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
        origin=block_mapping.origin,
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
    """A name or a member of an enumeration as text: 'parallel', 'vmem'."""
    return str(getattr(value, "value", value)).lower() if value is not None else "None"


def _parameter_names(body: Any) -> list[str]:
    described = getattr(body, "debug_info", None)
    names = list(getattr(described, "arg_names", None) or ())
    return [names[at] if at < len(names) and names[at] else f"operand {at}" for at in range(len(body.invars))]


def _function_name(body: Any) -> str:
    described = getattr(body, "debug_info", None)
    return getattr(described, "func_name", None) or "kernel"
