"""Profiles as a TPU's profiler writes them, by hand: a program's executions, and their operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.profiler import ProfileData

PS_PER_US = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """An operation that is called: its text, how long it takes, and operations inside it, which begin with it."""

    text: str
    time_us: float
    inside: tuple[TracedCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One execution of a program: operations that follow each other, with a microsecond before the first."""

    module: str
    calls: tuple[TracedCall, ...]

    @property
    def time_us(self) -> float:
        return 1 + sum(call.time_us for call in self.calls)


def fusion(name: str, time_us: float, kind: str = "kOutput") -> TracedCall:
    """A fusion with the text that XLA gives it."""
    shapes = "bf16[4096,2048]{1,0:T(8,128)(2,1)}"
    text = f"%{name} = {shapes} fusion({shapes} %param.1), kind={kind}, calls=%fused_computation"
    return TracedCall(text=text, time_us=time_us)


def a_profile(devices: Sequence[Sequence[Execution]], *, device_type: str = "TPU v6 Lite") -> bytes:
    """Return a serialized XSpace with a plane for each device, and one of the host. Programs are 10 µs apart."""
    planes = [_plane(number, executions, device_type) for number, executions in enumerate(devices)]
    host = 'planes { name: "/host:CPU" lines { name: "python" } }'
    return ProfileData.text_proto_to_serialized_xspace("\n".join([host, *planes]))


def _plane(number: int, executions: Sequence[Execution], device_type: str) -> str:
    names: dict[str, int] = {}
    modules, ops = [], []
    now_us = 100.0
    for execution in executions:
        modules.append(_event(names, execution.module, now_us, execution.time_us))
        ops += _calls(names, execution.calls, now_us + 1)
        now_us += execution.time_us + 10
    texts = [f'event_metadata {{ key: {key} value {{ id: {key} name: "{name}" }} }}' for name, key in names.items()]
    return "\n".join(
        [
            f'planes {{ name: "/device:TPU:{number}"',
            f'lines {{ name: "XLA Modules" timestamp_ns: 7000 {" ".join(modules)} }}',
            f'lines {{ name: "XLA Ops" timestamp_ns: 7000 {" ".join(ops)} }}',
            *texts,
            'stat_metadata { key: 1 value { id: 1 name: "device_duration_ps" } }',
            'stat_metadata { key: 2 value { id: 2 name: "device_type_string" } }',
            f'stats {{ metadata_id: 2 str_value: "{device_type}" }} }}',
        ]
    )


def _calls(names: dict[str, int], calls: Sequence[TracedCall], now_us: float) -> list[str]:
    events = []
    for call in calls:
        events.append(_event(names, call.text, now_us, call.time_us))
        events += _calls(names, call.inside, now_us)
        now_us += call.time_us
    return events


def _event(names: dict[str, int], name: str, begin_us: float, time_us: float) -> str:
    key = names.setdefault(name, len(names) + 1)
    begin, length = round(begin_us * PS_PER_US), round(time_us * PS_PER_US)
    stats = f"stats {{ metadata_id: 1 uint64_value: {length} }}"
    return f"events {{ metadata_id: {key} offset_ps: {begin} duration_ps: {length} {stats} }}"
