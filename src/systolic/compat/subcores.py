"""Kernels of SparseCores in TPU interpret mode, which knows none of their operations.

Such a kernel is traced again, with operations that the interpreter lacks in terms of others (`subcore_operations.py`).
Every subcore is a core of the interpreter then, with a thread and memory of its own, so that its race detector sees
copies of two subcores to one place. What subcores share (their barrier, `VMEM_SHARED`, additions to each other's
memory) is not modelled: such kernels raise NotImplementedError.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from systolic.compat.jaxpr_values import as_traced, bound, evaluate
from systolic.compat.jaxprs import Function, equations, functions_inside, with_functions, with_jaxpr


@contextmanager
def interpreted_subcores() -> Iterator[list[Any]]:
    """Let TPU interpret mode run kernels on a mesh of subcores, while it compiles them; yield their meshes."""
    from jax._src.core import extend_axis_env_nd
    from jax._src.pallas.mosaic import core as mosaic
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call
    from jax.experimental.pallas import tpu_sc as plsc

    calls: Any = interpret_pallas_call
    before = calls.interpret_pallas_call
    meshes: list[Any] = []
    kinds = (plsc.VectorSubcoreMesh, plsc.ScalarSubcoreMesh)

    @functools.wraps(before)
    def interpret(*args: Any, jaxpr: Any, mesh: Any, compiler_params: Any, interpret_params: Any, **kw: Any) -> Any:
        if isinstance(mesh, kinds):
            meshes.append(mesh)
            _refuse_shared(jaxpr)
            with extend_axis_env_nd(mesh.shape.items()):
                jaxpr = _retraced(jaxpr)
            # Without a mesh, the interpreter takes the number of the subcore from the grid.
            grid = tuple(mesh.shape.values())
            params = compiler_params or mosaic.CompilerParams()
            compiler_params = dataclasses.replace(params, dimension_semantics=("parallel",) * len(grid))
            interpret_params = dataclasses.replace(interpret_params, num_cores_or_threads=math.prod(grid))
            mesh = None
        return before(
            *args, jaxpr=jaxpr, mesh=mesh, compiler_params=compiler_params, interpret_params=interpret_params, **kw
        )

    calls.interpret_pallas_call = interpret
    try:
        yield meshes
    finally:
        calls.interpret_pallas_call = before


def _refuse_shared(jaxpr: Any) -> None:
    """Raise NotImplementedError where a kernel has memory that subcores share."""
    bodies = [jaxpr, *(function.jaxpr for equation in equations(jaxpr) for function in functions_inside(equation))]
    for variable in (variable for body in bodies for variable in (*body.constvars, *body.invars)):
        if "shared" in str(getattr(variable.aval, "memory_space", "")).lower():
            raise NotImplementedError("memory that the subcores of a SparseCore share")


def _operation(equation: Any) -> Any:
    """Return the function that builds an equation from those that the interpreter knows; None if it knows this one."""
    from jax._src.pallas.mosaic import sc_primitives

    from systolic.compat.subcore_operations import operations  # it imports JAX

    if equation.primitive is sc_primitives.parallel_loop_p:
        return _parallel_loop
    return operations().get(equation.primitive)


def _parallel_loop(equation: Any, inputs: Sequence[Any]) -> Any:
    from jax import lax

    lower, upper, step, consts, carry = equation.params["tree"].unflatten(inputs)

    def body(turn: Any, carried: Any) -> Any:
        return _evaluated(equation.params["jaxpr"], *consts, lower + turn * step, *carried)

    return lax.fori_loop(0, (upper - lower + step - 1) // step, body, list(carry))


def _retraced(jaxpr: Any) -> Any:
    """Trace a jaxpr again, with operations that the interpreter lacks replaced by operations that it has."""
    from jax._src import linear_util
    from jax._src.interpreters import partial_eval

    if not any(map(_operation, equations(jaxpr))):
        return jaxpr
    avals = [var.aval for var in (*jaxpr.constvars, *jaxpr.invars)]
    info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    made, _, hoisted = partial_eval.trace_to_jaxpr_dynamic(
        linear_util.wrap_init(functools.partial(_evaluated, jaxpr), debug_info=info), avals
    )
    if hoisted:
        raise NotImplementedError("a SparseCore kernel with constants of its own")
    if not jaxpr.constvars:
        return made
    if hasattr(made, "with_consts"):  # jax 0.12, where constants are the inputs that have a value
        return made.with_consts(jaxpr.consts)
    return partial_eval.convert_invars_to_constvars(made, len(jaxpr.constvars))


def _evaluated(jaxpr: Any, *values: Any) -> list[Any]:
    return evaluate(Function(jaxpr), values, _step)


def _step(equation: Any, inputs: list[Any]) -> list[Any]:
    with as_traced(equation):
        operation = _operation(equation)
        made = None if operation is None else operation(equation, inputs)
    if made is None:
        params = with_functions(equation.params, lambda function, _: with_jaxpr(function, _retraced))
        return bound(equation, inputs, params)
    return list(made) if equation.primitive.multiple_results else [made]
