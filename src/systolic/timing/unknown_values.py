"""Name the argument of a call that decides what its program executes, and say how to pass its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from systolic.compiler import (
    MAX_ARGUMENT_BYTES,
    Decision,
    NamedFunction,
    TracedArgument,
    argument_example,
    argument_type,
    decisions,
    traced_arguments,
    traced_jaxpr,
    without_jit_options,
)
from systolic.simulator import UnknownTimeError, UnknownValueError, UnknownWordsError
from systolic.simulator.hardware.values import COMPUTED
from systolic.simulator.reading.listing import TOP_LEVEL
from systolic.timing.call import Call

_MAX_DECISIONS = 2  # in a message


@contextmanager
def naming_arguments(call: Call) -> Iterator[None]:
    """Add the deciding argument, its place in the function and a fix to errors about unknown values.

    Raises:
      UnknownValueError, UnknownWordsError: as the block raised it, with advice at the end of its message.
    """
    try:
        yield
    except UnknownTimeError:  # its message says what to do
        raise
    except (UnknownValueError, UnknownWordsError) as error:
        error.args = (f"{str(error).removeprefix(f'{TOP_LEVEL}: ')}{_advice(error, call)}",)
        raise


def _advice(error: UnknownValueError | UnknownWordsError, call: Call) -> str:
    """Return the end of the message of an error, or "" if nothing is known."""
    jaxpr = traced_jaxpr(call.fn, call.args, call.target, settings=call.settings)
    arguments, deciding = traced_arguments(jaxpr), decisions(jaxpr)
    is_named = isinstance(without_jit_options(call.fn)[0], NamedFunction)
    if isinstance(error, UnknownWordsError):
        numbers = sorted(frozenset[int]().union(*(decision.arguments for decision in deciding)))
        missing = [number for number in numbers if call.values[number] is None]
        if not missing:
            return ""
        names = ", ".join(arguments[number].name for number in numbers)
        return f". They may be values of {names}, {_decides(deciding)}. {_give(arguments[missing[0]], is_named)}"
    if error.argument is not None:
        places = [decision for decision in deciding if error.argument in decision.arguments]
        fixes = [_give(arguments[error.argument], is_named)] if call.values[error.argument] is None else []
        if places and all(place.kernel for place in places):
            fixes.append("state typical values in the function with systolic.typical")
        reason = f", {_decides(places)}" if places else ""
        fix = ", or ".join(fixes)
        return f"{reason}. {fix[0].upper()}{fix[1:]}" if fix else reason
    if error.computed and error.why == COMPUTED.why:
        return (
            ", which is not simulated: branch on operands of scalar prefetch or in SMEM, whose values are followed, or "
            "simulate the kernel without the branch"
        )
    loops = [decision for decision in deciding if not decision.kernel]
    if not loops or not error.computed or error.program != TOP_LEVEL:
        return ""
    return (
        f", {_decides(loops)}. Results of XLA's own operations are not computed: simulate the loop's body or the "
        "branch alone, or count rounds with jax.lax.fori_loop"
    )


def _decides(places: Sequence[Decision]) -> str:
    """Return "which decides how often the while loop runs (file.py:12 in name)"."""
    omitted = len(places) - _MAX_DECISIONS
    texts = [place.text for place in places[:_MAX_DECISIONS]] + ([f"{omitted} more"] if omitted > 0 else [])
    return f"which decides {' and '.join(texts)}"


def _give(argument: TracedArgument, is_named: bool) -> str:
    """Say how to pass an argument's values: on the command line if its function `is_named` there, else in Python."""
    if argument.size_bytes > MAX_ARGUMENT_BYTES:
        return f"give it at most {MAX_ARGUMENT_BYTES >> 20} MiB, or its values are not used"
    if is_named:
        return f'give its values, such as --arg "{argument_example(argument.shape, argument.dtype)}"'
    return f"pass an array in place of the shape {argument_type(argument.shape, argument.dtype)}"
