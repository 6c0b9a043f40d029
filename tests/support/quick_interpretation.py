"""Interpret kernels sooner: callbacks and the race detector take most of the time of those that run over devices.

Importing it is enough, for scripts in processes of their own.
"""

from __future__ import annotations

from contextlib import ExitStack

from systolic.compat import accesses_compared_at_once, operands_without_transfers

_stack = ExitStack()  # until the process ends
_stack.enter_context(operands_without_transfers())
_stack.enter_context(accesses_compared_at_once())
