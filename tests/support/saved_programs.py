"""Two programs: one with something for each constant of a machine to act on, and a gather with known values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from listing_mutations import compiled_programs
from simulator_listings import V5E, listing

from systolic.chips import Chip
from systolic.simulator import Unknown
from systolic.timing import Program, prepare_program
from systolic.timing.contents import ProgramContents, parameter_contents
from systolic.timing.program import translated

GATHER = next(each for each in compiled_programs() if each.chip == "v5e")
INDEX = np.array([3, 1, 1, 0], np.int32)
HLO = """ENTRY %main (n: s32[1]) -> s32[1] {
  %n.1 = s32[1]{0:T(128)} parameter(0), metadata={op_name="n"}
}
"""
# Something for each constant to act on. Strides of a copy, as the compiler writes them, stand in scalar memory.
STRIDES = (32768, 2048, 16, 64, 128, 2, 16384, 64, 4)
EVERYTHING = (
    "%s1_s1 = scalar_parameter_address 0",
    "%s2_s2 = sshll.u32 %s1_s1, 4  ;;  %s3_s2 = int_to_ptr.hbm [resolvable:$true] %s2_s2",
    "%s4_s4 = smov [#allocation5]",
    "%s5_s5 = sshll.u32 %s4_s4, 4  ;;  %s6_s5 = int_to_ptr.vmem [resolvable:$true] %s5_s5",
    "%7 = dma.hbm_to_vmem %s3_s2, 16, %s6_s5, [#allocation8]",
    "%8 = dma.done.wait [#allocation8], 16",
    "%v1_v1 = vld [vmem:[#allocation5] sm:$0xff]",
    "%13 = vpush %v1_v1",
    "%s10_s10 = spop %13",
    "%7 = vmatmul.bf16.gmra.mxu0 %v1_v1",
    "%v2_v2 = vpop.f32.mrf.mxu0",
    *(["%8 = vmatpush.bf16.msra.mxu0 %v1_v1", "%7 = vmatmul.bf16.gmra.mxu0 %v1_v1"] * 40),
    *(["%7 = vxpose.xlu0.b32.cont %v1_v1"] * 9),
    "%s40_s3 = smov 0",
    *(
        line
        for at, word in enumerate(STRIDES)
        for line in (f"%s9{at}_s4 = smov {word}", f"%{at} = sst [smem:[#allocation6 + ${at:#x}]] %s9{at}_s4")
    ),
    "%7 = dma.vmem_to_hbm %s91_s21, 64, %s92_s22, [#allocation2]",
    "%7 = dma.general %s40_s3, 64, %s40_s3, [#allocation1], 131072, [#allocation6], 0, 0 /* hbm-to-vmem */",
    "%7 = dma.hbm_to_vmem %s91_s21, %s10_s10, %s92_s22, [#allocation1]",
    "%8 = dma.done.wait [#allocation1], 69",
)


def everything(known: Chip = V5E) -> Program:
    compiled = replace(GATHER, listings={"TLP": listing(*EVERYTHING)}, utilization={}, top_level_hlo=HLO)
    return translated("everything", known, compiled, ProgramContents(parameters=([5, *[0] * 127],), operands={}))


def gather() -> Program:
    hlo = prepare_program(GATHER, V5E).hlo
    assert hlo is not None
    parameters = tuple(parameter_contents(hlo, [INDEX, None]))
    kept = {("gather.1", 0, 0): [*INDEX.tolist(), *[0] * 124], ("gather.1", 0, 1): Unknown("x", computed=False)}
    return translated("gather", V5E, GATHER, ProgramContents(parameters=parameters, operands=kept))
