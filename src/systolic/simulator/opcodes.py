"""The instructions that the simulator knows: one table for TensorCores and one for SparseCores.

A new instruction is one entry. Scalar arithmetic needs nothing else: its `expression` says what it computes. All else
that asks about an instruction (which operands are sync flags, whether time passes, who translates it) asks its entry.

The instruction set is not documented; each entry is from observed listings. An instruction with an
uncertain effect is left out: a scalar one that matters is then an error, and a vector one has no effect.
"""

from __future__ import annotations

from systolic.simulator.opcode_traits import Kind, Opcode, OpcodeTable, Target

_NONE = slice(0)
_FIRST = slice(1)  # the first operand
_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _arithmetic(expressions: dict[str, str]) -> list[Opcode]:
    return [_scalar(name, "arithmetic", expression) for name, expression in expressions.items()]


def _ignored(*names: str) -> list[Opcode]:
    return [Opcode(name=name, kind="ignored", reads=_NONE) for name in names]


def _scalar(name: str, kind: Kind, expression: str = "", *, reads: slice = slice(None), flags: slice = _NONE) -> Opcode:
    return Opcode(
        name=name, kind=kind, translator="scalar", reads=reads, writes="register", expression=expression, flags=flags
    )


def _event(
    name: str,
    kind: Kind,
    *,
    writes: Target = "flag",
    reads: slice = slice(None),
    flags: slice = _NONE,
    is_remote: bool = False,
    names_result: bool = False,
) -> Opcode:
    return Opcode(
        name=name,
        kind=kind,
        translator="events",
        reads=reads,
        writes=writes,
        has_side_effects=True,
        flags=flags,
        is_remote=is_remote,
        names_result=names_result,
    )


def _flag(name: str, kind: Kind) -> Opcode:
    return Opcode(name=name, kind=kind, translator="bundle", writes="flag", has_side_effects=True, flags=_FIRST)


def _matrix(name: str, kind: Kind) -> Opcode:
    return Opcode(name=name, kind=kind, translator="mxu", reads=_NONE, writes="queue")


def _comparison(relation: str, dtype: str) -> str:
    sign = _RELATIONS[relation]
    if dtype == "f32":
        return f"float_compare({sign!r}, {{a}}, {{b}})"
    signed = dtype == "s32" and relation not in ("eq", "ne")
    return f"{{sa}} {sign} {{sb}}" if signed else f"{{a}} {sign} {{b}}"


# Of both kinds of cores. Registers are 32 bits wide and kept as integers from 0 to 2³² − 1. Predicates go through
# bitwise operations, since one may be an unknown value, which has no truth.
_SHARED = _arithmetic(
    {
        "sadd.s32": "({a} + {b}) & {m}",
        "ssub.s32": "({a} - {b}) & {m}",
        "smul.u32": "({a} * {b}) & {m}",
        "smulhi.u32": "({a} * {b}) >> 32",
        "sand.u32": "{a} & {b}",
        "sor.u32": "{a} | {b}",
        "sxor.u32": "{a} ^ {b}",
        "sshll.u32": "({a} << ({b} & 31)) & {m}",
        "sshllo.u32": "((({a} << ({b} & 31)) | ((1 << ({b} & 31)) - 1)) & {m})",  # ones come in
        "sshrl.u32": "{a} >> ({b} & 31)",
        "sshra.s32": "((({a} ^ 0x80000000) - 0x80000000) >> ({b} & 31)) & {m}",
        "smin.u32": "smaller({a}, {b})",
        "smax.u32": "larger({a}, {b})",
        "smin.s32": "smaller({sa}, {sb}) ^ 0x80000000",
        "smax.s32": "larger({sa}, {sb}) ^ 0x80000000",
        "por": "{a} | {b}",
        "pand": "{a} & {b}",
        "pmov": "{a}",
    }
)

TENSOR_CORE = OpcodeTable(
    [
        *_SHARED,
        *_arithmetic(
            {
                "sc.u32": "({a} + {b}) > {m}",  # the carry of a sum
                "pnand": "True ^ ({a} & {b})",
                "pnor": "True ^ ({a} | {b})",
                "pxor": "{a} ^ {b}",
                "pneg": "True ^ {a}",
                "sneg.s32": "-{a} & {m}",
                "sclz": "leading_zeros({a})",
                "sfloor.f32": "rounded_float('floor', {a})",
                "sceil.f32": "rounded_float('ceil', {a})",
                "scvt.s32.f32": "float_from_signed({a})",
                "scvt.f32.s32": "signed_from_float({a})",
                "scvt.pr.f32.s32": "signed_from_whole_float({a})",  # v4's; how it rounds is not known
                # A program that asks for a clock state reads the cycles since it last did so. It asks again after some
                # milliseconds; zero is the answer in repeated calls, which follow sooner.
                **dict.fromkeys(("cycles_lo.lcc", "cycles_hi.lcc", "srdreg.lcclo", "srdreg.lcchi"), "0"),
            }
            | {
                f"s{name}.f32": f"float_result({name!r}, {{a}}, {{b}})"
                for name in ["add", "sub", "mul", "div", "min", "max"]
            }
            | {
                f"scmp.{relation}.{dtype}*": _comparison(relation, dtype)
                for relation in _RELATIONS
                for dtype in ("s32", "u32", "f32")
            }
        ),
        _scalar("scalar_lea*", "address", "({a} + {b}) & {m}", reads=slice(2)),
        _scalar("scalar_lea.sflag", "address", "({a} + {b}) & {m}", reads=slice(2), flags=_FIRST),
        _scalar("smov", "move", "{a}"),
        _scalar("smov.u32", "move", "{a}"),  # since libtpu 0.0.52
        _scalar("scalar_select", "select"),
        _scalar("int_to_ptr*", "pointer", "{a}"),
        _scalar("reloc", "runtime word"),
        _scalar("scalar_parameter_address", "parameter"),
        _scalar("inlined_call_operand*", "operand"),
        Opcode(name="sphi", kind="phi", reads=_NONE, writes="register"),
        Opcode(name="pphi", kind="phi", reads=_NONE, writes="register"),
        # `shalt.err` stops a program whose address is out of bounds; `cld` and `cst` move vectors from and to v4's
        # CMEM; `vsetptstate` asks for a clock state; `vtrace` marks a place in the trace; `sdelay` (seen without an
        # amount) keeps a load of scalar memory after the store before it.
        *_ignored("sfence", "cfence", "compiler-scheduling-barrier", "set.rngseed", "shalt.err", "cld"),
        *_ignored("vsetptstate", "vtrace", "sdelay"),
        Opcode(name="cst", kind="ignored", reads=_NONE, writes="memory"),
        # Writes a bit next to a flag's count, for which no program seen waits.
        Opcode(name="vsyncset.done", kind="ignored", reads=_NONE, writes="flag", flags=_FIRST),
        # ---- in their bundle ----
        Opcode(name="sld*", kind="load", translator="bundle", writes="register"),
        Opcode(name="sst*", kind="store", translator="bundle", writes="memory"),
        Opcode(name="vld", kind="vector load", translator="bundle", writes="register"),
        Opcode(name="vmov", kind="vector move", translator="bundle", writes="register"),
        Opcode(name="vpush", kind="push", translator="bundle", writes="queue", names_result=True),
        Opcode(name="vpush*", kind="unsupported", writes="queue", names_result=True),
        Opcode(name="spop", kind="pop", translator="bundle", writes="queue", names_result=True),
        Opcode(name="vpop.sfrf", kind="pop", translator="bundle", writes="queue"),
        Opcode(name="spop*", kind="unsupported", writes="queue", names_result=True),
        Opcode(
            name="spop.drf",
            kind="division pop",
            translator="bundle",
            writes="queue",
            has_side_effects=True,  # each takes its turn in a queue
            names_result=True,
        ),
        Opcode(name="sdivrem.u32", kind="division", translator="bundle", writes="queue", names_result=True),
        Opcode(name="sdivrem.s32", kind="division", translator="bundle", writes="queue", names_result=True),
        Opcode(
            name="vsyncmov", kind="read flag", translator="bundle", writes="register", flags=_FIRST, names_result=True
        ),
        _flag("vsyncadd", "add to flag"),
        _flag("vsyncpa", "set flag"),
        _flag("vsyncset", "set flag"),
        _flag("vsync*", "unsupported"),
        Opcode(name="sbr.rel", kind="branch", translator="blocks", has_side_effects=True),
        # ---- events ----
        _event("call", "call", writes="memory"),  # as large top-level programs spell it
        _event("inlined_call", "call", writes="memory"),
        _event("dma.*", "copy", reads=slice(1, 2), writes="memory", flags=slice(3, 4)),
        _event("dma.general", "copy", reads=slice(1, 2), writes="memory", flags=slice(3, 5), is_remote=True),
        *(
            _event(f"dma.{ends}", "copy", reads=slice(4, 5), writes="memory", flags=slice(3, 4))
            for ends in (
                "host_iova*",
                "hbm_to_host_iova",
                "vmem_to_host_iova",
                "cmem_to_host_iova",
                "smem_to_host_iova",
            )
        ),
        _event("dma", "start a BarnaCore", writes="memory"),  # by a descriptor
        _event("dma.done.wait", "wait for copy", flags=_FIRST),
        _event("vwait.ge", "wait", flags=_FIRST),
        _event("vwait.ge.trace", "wait", flags=_FIRST),
        _event("vwait.eq*", "wait for value", flags=_FIRST),
        _event("vwait.ne*", "wait for value", flags=_FIRST),
        _event("vwait.lt*", "wait for value", flags=_FIRST),
        _event("vwait*", "unsupported wait", flags=_FIRST),
        _event("vsyncadd.remote", "signal", flags=_FIRST, is_remote=True),
        _event("vsyncset.remote", "set remote flag", flags=_FIRST),
        _event("vpush.ccrf", "send", writes="queue", names_result=True),
        _event("vpop.ccrf", "receive", writes="queue"),
        # ---- MXUs ----
        _matrix("vmatmul*", "matmul"),
        _matrix("vmatpush*", "weight push"),
        _matrix("vpop*", "result pop"),
        # ---- cross-lane units ----
        *(
            _matrix(f"{name}*", "lane move")
            for name in ("vadd.xlane", "vbcast.lane", "vmax.xlane", "vmin.xlane", "vperm", "vrot.lane", "vxpose")
        ),
    ]
)

SPARSE_CORE = OpcodeTable(
    [
        *_SHARED,
        *_arithmetic(
            {
                f"s{relation}.{dtype}": _comparison(relation, dtype)
                for relation in _RELATIONS
                for dtype in ("s32", "u32")
            }
            | {"stileid.u32": "tile", "srdreg.scid": "core", "spop*": "computed"}
        ),
        *(_scalar(name, "move", "{a}") for name in ("smov.u32", "smov.s32", "simm.s32", "simm.u32")),
        # Traces, tags, fences, and flags switched on or off. The index that a stream passes over (`ssetifvalue`) is
        # among them: every index of a list counts.
        *_ignored("sfence", "sfence.sel", "sfence.stream.spmem", "sfence.stream.hbm", "snop", "ssetifvalue"),
        # A tile that has read a sequencer's word has it at once: no time shows how long that takes.
        *_ignored("ssettag", "ssettm", "ssyncpa.u1", "ssyncset.done", "strace", "swait.done"),
        Opcode(name="sld", kind="load", writes="register"),
        Opcode(name="sst", kind="store", writes="memory"),
        Opcode(name="rddreg", kind="read argument", writes="register"),
        Opcode(name="wrdreg", kind="write argument", writes="memory"),
        Opcode(name="sdelay", kind="delay"),
        Opcode(name="shalt", kind="halt"),
        Opcode(name="sbr.*", kind="branch"),
        Opcode(name="sbr.abs", kind="branch out"),
        Opcode(name="scall.abs", kind="branch"),  # to the next part of a program that is longer than its memory
        Opcode(name="sbr.ind", kind="branch out"),
        Opcode(name="ssyncadd.s32", kind="add to flag", writes="flag"),
        Opcode(name="ssyncset.s32", kind="set flag", writes="flag"),
        Opcode(name="ssyncread", kind="read flag", writes="register"),
        _event("smem.add.s32", "fetch and add", writes="memory"),
        _event("smem.*", "unsupported"),
        _event("ssyncadd.*", "unsupported"),
        _event("ssyncadd.remote.s32", "signal"),
        _event("ssyncadd.tile.s32", "signal in the core"),
        _event("swait.ge", "wait"),
        _event("swait.eq", "wait"),
        _event("swait*", "unsupported"),
        _event("stream.*", "stream", writes="memory"),
        _event("dma.local", "copy", writes="memory"),
        _event("dma.general", "copy to any device", writes="memory"),
        _event("dma.*", "unsupported"),
        _event("sint", "refused"),
        _event("swait.notdone", "refused"),
        _event("task", "task"),
        _event("task.clear_ibuf", "task"),
        _event("task*", "unsupported"),
        _event("sbarrier.arrive", "barrier"),
    ]
)
