"""Turn exceptions into findings: from the interpreter, the user's code, or a worker that ended."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from systolic.analysis import KernelCall, Operand
from systolic.checking.access import Access
from systolic.checking.finding import Finding, Grade, call_finding
from systolic.checking.waiting import DeadlockError
from systolic.checking.watching import FIRST_BUFFER, Watch
from systolic.compiler import CompilerTimeout, FunctionExit, WorkerEnded, source_line

_BLOCK_OUTSIDE = re.compile(
    r'Out-of-bounds block index (\(.*?\)) for (\w+) "(.*?)" in iteration (\(.*?\)) .*? has shape (\(.*?\))'
)
_OUTSIDE = re.compile(
    r"Out-of-bounds (?:masked )?(\w+) of \(\d+ \d+ (\w+) (\d+)\): ?\w+ \[\((.*)\)\] but buffer has shape\s+(\(.*?\))"
)
_REVISITED = re.compile(r"Revisited block .*")
_SLICE = re.compile(r"slice\((\d+), (\d+), 1\)")
# Messages about gaps of interpret mode: operations, types, transforms of references, SparseCores, random numbers.
_LACKING = (
    r"NotImplementedError|UNIMPLEMENTED|[Nn]ot implemented|backend does not support|MLIR translation rule|"
    r"'\w*Transform' object has no attribute|not (?:currently )?supported in (?:TPU )?interpret|"
    r"(?:SC|Sparse)\w*(?:Mesh|Subcore|Core)\b.*(?:interpret|support)|prng_(?:seed|random_bits)"
)
# JAX's messages about a function that needs a mesh.
_NO_MESH = re.compile(r"context mesh cannot be empty|unbound axis name|Number of devices \d+ must be")
_WORDS = {"swap": "write"}
_RAISED = re.compile(r"^\w*(?:Error|Exception): .*", re.MULTILINE)


def run_failure(error: Exception, calls: Sequence[KernelCall], conditions: str, watch: Watch) -> Finding:
    """Report a run in interpret mode that ended in an exception.

    Args:
      error: raised by the interpreter, or by the function.
      calls: the Pallas calls that were run.
      conditions: the conditions of the run, in words.
      watch: the accesses of that run.
    """
    text = str(error)
    if isinstance(error, DeadlockError):
        wait = next(iter(watch.waits.values()), Access())
        on = f" on device {wait.device}" if watch.devices > 1 else ""
        return about(
            calls,
            "deadlock",
            value=f"it waits for {semaphore_name(calls, wait.number)} that nobody signals{wait.at_step}{on}",
            limit=f"it never ends ({conditions})",
            fix="start a copy for every wait, with the same semaphore and as many bytes",
            where=wait.where,
        )
    if watch.entering.early:
        return no_barrier(calls, watch.entering.early[0])
    access = watch.failed or Access()
    where = access.where or source_line(error) or ""
    if access.out_of_scope:
        return about(
            calls,
            "scope",
            value=f"memory is used after its scope{access.at_step}",
            limit="memory of run_scoped is freed when its function ends: another buffer may be there then",
            fix="use it, and wait for its copies, inside of that function",
            where=where,
        )
    if match := _BLOCK_OUTSIDE.search(text):
        block, kind, name, step, shape = match.groups()
        return about(
            calls,
            "out-of-bounds",
            value=f"{name}: at step {step} the index map gives block {block} of an {kind} of shape {shape}",
            limit="there is no such block: other memory is read or overwritten",
            fix="mend the index map or the grid; an index map gives blocks, not elements",
            where=where,
        )
    if match := _OUTSIDE.search(text):
        what, memory, buffer, part, shape = match.groups()
        part = _SLICE.sub(r"\1:\2", part)
        name = buffer_name(calls, int(buffer) - FIRST_BUFFER) or f"a buffer in {memory}"
        return about(
            calls,
            "out-of-bounds",
            value=f"{name}:{access.at_step} a {_WORDS.get(what, what)} of [{part}] in a buffer of shape {shape}",
            limit="there is another buffer, or nothing, past its end",
            fix="make the slice end inside: clip its start, or use a buffer of whole tiles",
            where=where,
        )
    if match := _REVISITED.search(text):
        return about(
            calls,
            "revisited-output",
            value=f"a block of an output is left and visited again: {match.group()}",
            limit="it was written back meanwhile, and comes with other contents",
            fix="make all steps of an output block consecutive: the axis that sums goes last",
            where=where,
        )
    return _failed(error, calls, where)


def no_barrier(calls: Sequence[KernelCall], copy: Access) -> Finding:
    """Report a copy to a device that may not run the kernel yet."""
    return about(
        calls,
        "race",
        value=f"device {copy.device} begins a copy to device {copy.other}, and does not know that this one is in "
        "the kernel, too",
        limit="until then the memory that it writes to, and the semaphore, may be in use by something else there",
        fix="before the first copy signal pltpu.get_barrier_semaphore() of both neighbours, wait for theirs, and give "
        "collective_id in pltpu.CompilerParams",
        where=copy.where,
    )


def _failed(error: Exception, calls: Sequence[KernelCall], where: str) -> Finding:
    text = str(error)
    message = (_RAISED.findall(text) or [f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"])[-1].strip()
    lacking = isinstance(error, NotImplementedError) or re.search(_LACKING, text)
    return about(
        calls,
        "run",
        grade="warning" if lacking else "error",
        value=f"{'it was not run: interpret mode cannot' if lacking else 'running it raises'}: {message[:300]}",
        limit="its results are not known",
        fix="try it on a TPU" if lacking else "see the text below",
        where=where,
        detail=text[-4000:],
    )


def buffer_name(calls: Sequence[KernelCall], number: int) -> str:
    """Name one of the interpreter's buffers by its number from 0; "" where its use is not known."""
    if len(calls) != 1:
        return ""
    buffers = _buffers(calls[0])
    if not 0 <= number < len(buffers):
        return ""
    operand, is_whole = buffers[number]
    return f"{operand.name} in HBM" if is_whole else operand.name


def scratch_buffers(call: KernelCall) -> tuple[int, ...]:
    """Number the interpreter's buffers from 0, and list the buffers of scratch memory for floats in VMEM."""
    return tuple(
        number
        for number, (operand, _) in enumerate(_buffers(call))
        if operand.role == "scratch" and operand.memory == "vmem" and "float" in operand.dtype
    )


def _buffers(call: KernelCall) -> list[tuple[Operand, bool]]:
    """List the interpreter's buffers: the operand of each, and whether it is the whole array in HBM.

    It makes one of each array in HBM, then one of each of the kernel's parameters that has another memory.
    """
    aliased = {out for _, out in call.aliases}
    outputs = [operand for at, operand in enumerate(call.of("output")) if at not in aliased]
    inside = [operand for operand in call.operands if operand.memory not in ("hbm", "semaphore")]
    return [*((operand, True) for operand in (*call.of("input"), *outputs)), *((operand, False) for operand in inside)]


def semaphore_name(calls: Sequence[KernelCall], number: int | None) -> str:
    """Name one of the interpreter's semaphores by its number from 0: "sem", or "sem[2]" of several; "a semaphore"."""
    operands = [operand for operand in calls[0].operands if operand.memory == "semaphore"] if len(calls) == 1 else []
    for operand in operands:
        count = math.prod(operand.shape)
        if number is None or number < 0:
            break
        if number < count:
            return (
                f"{operand.name}[{', '.join(map(str, np.unravel_index(number, operand.shape)))}]"
                if operand.shape
                else operand.name
            )
        number -= count
    return "a semaphore"


def about(calls: Sequence[KernelCall], rule: str, grade: Grade = "error", **text: str) -> Finding:
    """Return a finding about the kernels that ran; a single kernel is named, with its place."""
    return call_finding(calls[0] if len(calls) == 1 else None, rule, grade, **text)


def exception_finding(
    error: Exception, rule: str, beginning: str, *, limit: str, fix: str = "see the text below", chip: str = ""
) -> Finding:
    """Report an exception of the user's code; `said` begins the sentence that ends with its type and text."""
    return Finding(
        rule=rule,
        grade="error",
        value=f"{beginning}{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}",
        limit=limit,
        fix=fix,
        where=source_line(error) or "",
        chip=chip,
        detail=str(error).strip() or type(error).__name__,
    )


def trace_failure(error: Exception, chip: str = "") -> Finding:
    """Report that a function raises while it is traced."""
    return exception_finding(
        error,
        "trace",
        "tracing it raises ",
        limit="there is nothing to check",
        fix='give it a mesh of as many devices as it needs: --mesh x=4 (mesh={"x": 4})'
        if _NO_MESH.search(str(error))
        else "call it with these arguments in plain JAX first; give static arguments with --param",
        chip=chip,
    )


NO_VERDICT = "the compiler gave no answer, which says nothing about the kernel"
_NO_ANSWER = {
    "trace": "there is nothing to check: Python code that runs while a function is traced has to end",
    "run": "neither the blocks that it visits nor its results are known",
}


def worker_failure(error: WorkerEnded | FunctionExit, chip: str) -> Finding:
    """Report a job whose worker ended before it answered: who ended it, and what to change.

    Args:
      error: how the worker ended.
      chip: the chip that the job was for; "" for a run.
    """
    if isinstance(error, FunctionExit):
        return Finding(
            rule="trace",
            grade="error",
            value=f"the function exits the program: {error.how}",
            limit=_NO_ANSWER["trace"],
            fix="return, or raise an error that says what is wrong",
            chip=chip,
            where=error.where,
        )
    rule, grade = _rule(error)
    return Finding(
        rule=rule,
        grade=grade,
        value=f"{'its process' if error.how.startswith('ended') else 'it was'} {error.how}",
        limit=_NO_ANSWER.get(rule, NO_VERDICT),
        fix=error.fix,
        chip=chip,
        where=error.where,
    )


def _rule(error: WorkerEnded) -> tuple[str, Grade]:
    if error.stage in ("reading", "interpreting"):
        return "run", "error"
    if error.by_function:
        return "trace", "error"
    # The compiler's failure is no fault of the kernel: it is not known whether another version would take it.
    return ("compiler-timeout" if isinstance(error, CompilerTimeout) else "compiler-crash"), "warning"
