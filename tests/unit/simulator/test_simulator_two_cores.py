"""Programs of two cores: they share the pipe to HBM, wait for each other, and read what the other one wrote."""

from __future__ import annotations

import pytest
from simulator_listings import shown, simulate

from systolic.chips import chip
from systolic.simulator import DeadlockError


def wait(granules: int, flag: str) -> str:
    return f"%8 = dma.done.wait [#allocation{flag}], {granules}"


CORE = "%s1_s1 = sld [smem:[#allocation0]] /* core id */"


def test_cores_share_the_pipe_and_the_later_one_counts() -> None:
    run = simulate(
        CORE,
        "%s2_s2 = sadd.s32 1, %s1_s1",
        "%s3_s3 = smul.u32 1000, %s2_s2",
        "%7 = dma.hbm_to_vmem %s91_s91, %s3_s3, %s92_s92, [#allocation1]",
        "%8 = dma.done.wait [#allocation1], %s3_s3",
        chip_name="v5p",
    )
    assert [core.hbm_read_bytes for core in run.cores] == [32000, 64000]
    machine = chip("v5p").machine
    pipe = 96000 / (machine.hbm_bytes_per_s / machine.clock_hz)
    assert run.cycles == pytest.approx(pipe + machine.dma_latency_cycles, abs=100)
    assert run.cycles == run.cores[1].cycles > run.cores[0].cycles


def test_a_copy_for_both_cores_crosses_hbm_once() -> None:
    both = (
        CORE,
        "%p1_p1 = scmp.eq.s32.totalorder %s1_s1, 0  ;;  %s2_s2 = scalar_lea.sflag [#allocation1], 0",
        "%s3_s3 = sor.u32 24576, %s2_s2",
        "%s4_s4 = sshll.u32 %s3_s3, 16",
        "%s5_s5 = sor.u32 %s4_s4, %s2_s2",
        "%7 = dma.hbm_to_vmem (%p1_p1), %s91_s91, 1000, %s92_s92, %s5_s5",
        wait(1000, "1"),
    )
    run = simulate(*both, chip_name="v5p")
    assert run.hbm_read_bytes == 32000
    assert all(core.copy_stall_cycles > 0 for core in run.cores)


def test_a_barrier_waits_for_the_other_core() -> None:
    run = simulate(
        CORE,
        "%p1_p1 = scmp.eq.s32.totalorder %s1_s1, 0",
        "%9 = sbr.rel (%p1_p1) target = $region7",
        *["", "", ""],
        "/* End region 6 */",
        *[""] * 500,
        "PF|%v1_v1 = vmov 77 /* Start/End empty region 7 */",
        "%7 = vpush.ccrf %v1_v1",
        "%v2_v2 = vpop.ccrf",
        chip_name="v5p",
    )
    assert run.cores[0].cycles == pytest.approx(run.cores[1].cycles, abs=100)
    assert run.cycles > 500


def test_a_core_reads_what_the_other_one_wrote_to_hbm() -> None:
    flag = "[#allocation8]"
    run = simulate(
        CORE,
        "%s2_s2 = scalar_parameter_address 0",
        "%s3_s3 = sshll.u32 %s2_s2, 4  ;;  %s4_s3 = int_to_ptr.hbm [resolvable:$true] %s3_s3",
        "%p1_p1 = scmp.ne.s32.totalorder %s1_s1, 0",
        "%9 = sbr.rel (%p1_p1) target = $region7",  # the second core does not write
        *["", "", ""],
        "/* End region 6 */",
        "%s5_s5 = smov 7",
        "%12 = sst [smem:[#allocation3]] %s5_s5  ;;  %s6_s6 = smov [#allocation3]",
        f"%13 = dma.smem_to_hbm %s6_s6, 16, %s4_s3, {flag}",
        wait(16, "8"),
        "PF|%v1_v1 = vmov 77 /* Start/End empty region 7 */",
        "%7 = vpush.ccrf %v1_v1",
        "%v2_v2 = vpop.ccrf",
        f"%14 = dma.hbm_to_smem %s4_s3, 16, [#allocation7], {flag}",
        wait(16, "8"),
        "%s10_s10 = sld [smem:[#allocation7]]",
        *shown("%s10_s10"),
        chip_name="v5p",
    )
    granule_bytes = chip("v5p").machine.granule_bytes
    assert [core.hbm_read_bytes for core in run.cores] == [(16 + 7) * granule_bytes] * 2


def test_cores_that_wait_for_each_other_are_told() -> None:
    with pytest.raises(DeadlockError, match=r"core 0: .*; core 1: .*vpop\.ccrf"):
        simulate("%v2_v2 = vpop.ccrf", chip_name="v5p")
