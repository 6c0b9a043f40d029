"""The scalar side: what each instruction does, and in which order a bundle reads and writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_listings import shown, simulate, value

from systolic.simulator import SimulationError
from systolic.simulator.opcodes import SPARSE_CORE
from systolic.simulator.sparse_core import scalar as sparse_core

WORDS = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]))
M = 2**32


def signed(word: int) -> int:
    return word - M if word >= 2**31 else word


ARITHMETIC = {
    "sadd.s32": lambda a, b: (a + b) % M,
    "ssub.s32": lambda a, b: (a - b) % M,
    "smul.u32": lambda a, b: a * b % M,
    "smulhi.u32": lambda a, b: a * b // M,
    "sand.u32": lambda a, b: a & b,
    "sor.u32": lambda a, b: a | b,
    "sxor.u32": lambda a, b: a ^ b,
    "smin.u32": min,
    "smax.u32": max,
    "smin.s32": lambda a, b: min(signed(a), signed(b)) % M,
    "smax.s32": lambda a, b: max(signed(a), signed(b)) % M,
    "scalar_lea.vmem": lambda a, b: (a + b) % M,
}
SHIFTS = {
    "sshll.u32": lambda a, b: (a << b) % M,
    "sshllo.u32": lambda a, b: ((a << b) | (1 << b) - 1) % M,  # ones come in
    "sshrl.u32": lambda a, b: a >> b,
    "sshra.s32": lambda a, b: (signed(a) >> b) % M,
}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def two(a: int, b: int) -> tuple[str, str]:
    return f"%s1_s1 = smov {a}", f"%s2_s2 = smov {b}"


@pytest.mark.parametrize("opcode", ARITHMETIC)
@given(a=WORDS, b=WORDS)
def test_arithmetic(opcode: str, a: int, b: int) -> None:
    wanted = ARITHMETIC[opcode](a, b)
    assert value(*two(a, b), f"%s3_s3 = {opcode} %s1_s1, %s2_s2", register="%s3_s3") == wanted
    assert value(*two(a, b), f"%s3_s3 = {opcode} {a}, %s2_s2", register="%s3_s3") == wanted


@pytest.mark.parametrize("opcode", SHIFTS)
@given(a=WORDS, b=st.integers(0, 31))
def test_shifts(opcode: str, a: int, b: int) -> None:
    assert value(*two(a, b), f"%s3_s3 = {opcode} %s1_s1, %s2_s2", register="%s3_s3") == SHIFTS[opcode](a, b)


@pytest.mark.parametrize("opcode", SHIFTS)
@given(a=WORDS, b=st.integers(0, 31))
def test_a_sparse_core_shifts_alike(opcode: str, a: int, b: int) -> None:
    written = sparse_core.expression(SPARSE_CORE[opcode], ("s1", "s2"), {})
    assert written is not None
    assert eval(written, {"s1": a, "s2": b}) == SHIFTS[opcode](a, b)


@pytest.mark.parametrize("kind", ["s32", "u32"])
@pytest.mark.parametrize("relation", COMPARISONS)
@given(a=WORDS, b=WORDS)
def test_comparisons(relation: str, kind: str, a: int, b: int) -> None:
    left, right = (signed(a), signed(b)) if kind == "s32" else (a, b)
    wanted = eval(f"{left} {COMPARISONS[relation]} {right}")
    code = (*two(a, b), f"%p3_p3 = scmp.{relation}.{kind}.totalorder %s1_s1, %s2_s2")
    selected = "%s4_s4 = scalar_select /*predicate=*/%p3_p3, /*on_true=*/7, /*on_false=*/5"
    assert value(*code, selected, register="%s4_s4") == (7 if wanted else 5)
    assert value(*code, "%s4_s4 = smov (%p3_p3, 5), 7", register="%s4_s4") == (7 if wanted else 5)
    assert value(*code, "%s4_s4 = smov (!%p3_p3, 5), 7", register="%s4_s4") == (5 if wanted else 7)


@given(a=st.booleans(), b=st.booleans())
def test_predicates(a: bool, b: bool) -> None:
    code = (f"%p1_p1 = scmp.eq.s32.totalorder 1, {int(a)}", f"%p2_p2 = scmp.eq.s32.totalorder 1, {int(b)}")
    wanted = {
        "por %p1_p1, %p2_p2": a or b,
        "pand %p1_p1, %p2_p2": a and b,
        "pnand %p1_p1, %p2_p2": not (a and b),
        "por !%p1_p1, %p2_p2": not a or b,
        "pneg %p1_p1": not a,
    }
    for operation, result in wanted.items():
        selected = (f"%p3_p3 = {operation}", "%s4_s4 = scalar_select %p3_p3, 7, 5")
        assert value(*code, *selected, register="%s4_s4") == (7 if result else 5)


@given(a=WORDS, b=st.integers(1, 2**32 - 1))
def test_division(a: int, b: int) -> None:
    remainder = (f"%9 = sdivrem.u32 %s1_s1, {b} /*kRem*/", "%s3_s3 = spop.drf %9")
    assert value(f"%s1_s1 = smov {a}", *remainder, register="%s3_s3") == a % b
    with_line = (f'%9 = sdivrem.u32 %s1_s1, {b} /* loc("/a/b.py":1:2 to :3) :: kDiv */', "%s3_s3 = spop.drf %9")
    assert value(f"%s1_s1 = smov {a}", *with_line, register="%s3_s3") == a // b
    both = (f"%9 = sdivrem.u32 %s1_s1, {b} /* kDivAndRem */", "%s3_s3 = spop.drf %9", "%s4_s4 = spop.drf %9")
    assert value(f"%s1_s1 = smov {a}", *both, register="%s3_s3") == a // b
    assert value(f"%s1_s1 = smov {a}", *both, register="%s4_s4") == a % b


def test_a_predicated_write_keeps_the_old_value() -> None:
    no = ("%s1_s1 = smov 3", "%p1_p1 = scmp.eq.s32.totalorder 1, 2")
    assert value(*no, "%s2_s1 = sadd.s32 (%p1_p1), 9, %s1_s1", register="%s2_s1") == 3
    assert value(*no, "%s2_s1 = sadd.s32 (!%p1_p1), 9, %s1_s1", register="%s2_s1") == 12
    assert value(*no, "%s2_s1 = smov (0), 9", register="%s2_s1") == 3


def test_all_reads_of_a_bundle_come_before_its_writes() -> None:
    swap = (*two(3, 5), "%s3_s1 = smov %s2_s2  ;;  %s4_s2 = smov %s1_s1")
    assert value(*swap, register="%s3_s1") == 5
    assert value(*swap, register="%s4_s2") == 3


def test_int_to_ptr_reads_what_its_bundle_wrote() -> None:
    bundle = "%s2_s1 = sshll.u32 %s1_s1, 4  ;;  %s3_s7 = int_to_ptr.vmem [resolvable:$true] %s2_s1"
    assert value("%s1_s1 = smov 3", bundle, register="%s3_s7") == 48


def test_a_load_sees_memory_before_the_store_of_its_bundle() -> None:
    code = (
        "%s1_s1 = smov 3  ;;  %s2_s2 = smov 5",
        "%1 = sst [smem:[#allocation1 + $0x2]] %s1_s1",
        "%2 = sst [smem:[#allocation1 + $0x2]] %s2_s2  ;;  %s3_s3 = sld [smem:[#allocation1 + $0x2]]",
        "%s4_s4 = sld [smem:[#allocation1 + $0x2]]",
    )
    assert value(*code, register="%s3_s3") == 3
    assert value(*code, register="%s4_s4") == 5


def test_memory_through_a_computed_address_and_a_spill() -> None:
    code = (
        "%s1_s1 = smov 3  ;;  %s2_s2 = smov 2",
        "%s3_s3 = scalar_lea.smem [#allocation1], %s2_s2  ;;  %4 = sst [smem:[#allocation7_spill]] %s1_s1",
        "%1 = sst [smem:[%s3_s3]] %s1_s1",
        "%s4_s4 = sld [smem:[#allocation1 + $0x2]]  ;;  %s5_s5 = sld [smem:[#allocation7_spill]]",
        "%s6_s6 = sadd.s32 %s4_s4, %s5_s5",
    )
    assert value(*code, register="%s6_s6") == 6


def test_a_float_is_its_bits() -> None:
    assert value("%s1_s1 = smov 1.5", register="%s1_s1") == 0x3FC00000


@pytest.mark.parametrize(
    ("bundle", "said"),
    [
        ("%7 = frobnicate %s1_s1", "frobnicate"),
        ("%s3_s3 = sfrob.s32 %s1_s1, 4", "sfrob.s32"),
        ("%s3_s3 = sadd.s32 %s1_s1, $what", "what"),
        ("%7 = dma.mars_to_venus", "mars"),
        ("%7 = dma.general %s1_s1, 4, %s1_s1, [#allocation3], %s1_s1", "memory space"),
        ("%7 = vsyncfoo [#allocation3], 1", "vsyncfoo"),
    ],
)
def test_what_is_not_understood_is_quoted_with_its_line(bundle: str, said: str) -> None:
    with pytest.raises(SimulationError, match=rf"TLP, line 5: .*{said}"):
        simulate("%s1_s1 = smov 3", bundle, *shown("%s3_s3"))


def test_a_value_of_the_vector_side_decides_nothing() -> None:
    pushed = ("%7 = vpush %v1_v1", "%s1_s1 = spop %7")
    simulate(*pushed)
    with pytest.raises(SimulationError, match="depends on what the vector unit computed"):
        simulate(*pushed, "%s2_s2 = sadd.s32 1, %s1_s1", *shown("%s2_s2"))
