"""Find compiler flags of published times that their source states in words."""

from __future__ import annotations

import re

_SCOPED_VMEM = "xla_tpu_scoped_vmem_limit_kib"
# A flag, or the name of a limit, followed by its value. Other wordings are not guessed.
_STATED = (
    (re.compile(r"scoped[ _]vmem(?:[ _]limit)?(?:_kib)?[ =](\d+)(?: KiB)?\b(?! MiB)", re.IGNORECASE), _SCOPED_VMEM, 1),
    (re.compile(r"scoped[ _]vmem(?:[ _]limit)? (\d+) MiB\b", re.IGNORECASE), _SCOPED_VMEM, 1024),
    (re.compile(r"\b(?:xla_tpu_)?(?:dvfs_)?p_state[ =](\d)\b"), "xla_tpu_dvfs_p_state", 1),
)
# Collectives that ran on SparseCores, as benchmarks abbreviate them.
_OFFLOADED = re.compile(r"\b(?:SparseCore|SC) offload (AG|AR|RS)\b")
_COLLECTIVES = {"AG": "all_gather", "AR": "all_reduce", "RS": "reduce_scatter"}
_SWITCH = re.compile(r"\b(?:xla_)?jf_bounds_check=(true|false)\b")


def stated_flags(text: str) -> dict[str, str]:
    """Return the flags in a text with their values; a flag with two values is left out."""
    result: dict[str, set[str]] = {}
    for pattern, name, factor in _STATED:
        for match in pattern.finditer(text):
            result.setdefault(name, set()).add(str(int(match[1]) * factor))
    for match in _SWITCH.finditer(text):
        result.setdefault("xla_jf_bounds_check", set()).add(match[1])
    for match in _OFFLOADED.finditer(text):
        name = f"xla_tpu_enable_sparse_core_collective_offload_{_COLLECTIVES[match[1]]}"
        result.setdefault(name, set()).add("true")
    return {name: values.pop() for name, values in result.items() if len(values) == 1}
