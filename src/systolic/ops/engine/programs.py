"""The programs that `bench` compares, made by every op of the programs that `tune` compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from systolic.chips import Chip
from systolic.ops.engine.backend import Implementation
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.ops.planner import plan
from systolic.spec import Spec


def call_options(spec: Any, chip: Chip, implementation: Implementation) -> dict[str, Any]:
    """Return the arguments that a call of every op takes in the same way, as a spec states them."""
    return {
        "precision": spec.precision,
        "preferred_element_type": spec.dtype_out,
        "implementation": implementation,
        "chip": chip,
    }


def raced_call(
    programs: Programs, call: Callable[..., Any], forms: Mapping[str, Callable[..., Any]] | None = None
) -> RacedPrograms:
    """Return a race of users' calls against XLA's program and its other `forms`, with the same arguments."""
    return RacedPrograms(
        spec=programs.computed,
        arguments=programs.arguments,
        ours=call,
        xla=programs.xla,
        xla_forms=forms or {},
        shardings=programs.shardings,
    )


def raced_kernel(programs: Programs, spec: Spec, chip: Chip) -> RacedPrograms:
    """Return a race of the kernel itself, with the planner's configuration: for products without a call."""
    return RacedPrograms(
        spec=spec,
        arguments=programs.arguments,
        ours=programs.kernel(plan(spec, chip).config),
        xla=programs.xla,
        shardings=programs.shardings,
    )
