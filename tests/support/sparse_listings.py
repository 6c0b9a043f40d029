"""Small SparseCore listings for tests."""

from collections.abc import Sequence


def listing(scs: Sequence[str], tec: Sequence[str]) -> str:
    """Makes a listing of two sections, an instruction or a label a line; several instructions are parted by `;`."""
    lines = []
    for name, code in (("scs", scs), ("tec", tec)):
        lines.append(name)
        at = 0
        for line in code:
            if line.endswith(":"):
                lines.append(line)
            else:
                lines.append(f"{at:#x}: {{ {line} }}")
                at += 1
    return "\n".join(lines) + "\n"


# What XLA makes of a gather, shortened: the sequencer loads the tiles' code and starts it, each tile fetches one block
# of 128 rows of 128 words by a list of indices, and writes it out.
_SEQUENCER = [
    "(pc) = sbr.rel $0x5, $3",
    *["_ = snop"] * 4,
    "called_computation_lowered:",
    "s20 = sld [smem:$0x3FDB]; s6 = simm.s32 $_scs_section_size",
    "s7 = simm.s32 $_size__tile_overlayer_lowered; s8 = simm.s32 $_tile_overlayer_lowered",
    "s5 = sadd.s32 s6, s20; s22 = sshll.u32 s8, $0x1",
    "s21 = sshll.u32 s7, $0x1; s7 = sadd.s32 s22, s5; s9 = simm.s32 $0x0",
    "[timem:s9], [sflag:$0x1BFF] = dma.local [hbm:s7], s21",
    "_ = swait.ge [sflag:$0x1BFF], s21",
    "_ = swait.ge [sflag:$0x1B8D], $0x1",
    "[dreg:$0x0] = wrdreg $0x0; [sflag:$0x1B8D] = ssyncadd.s32 $0xFFFFFFFF",
    "[dreg:$0x1] = wrdreg $0xFFFFFFFF; s8 = simm.s32 $_size_execute0_lowered",
    "[dreg:$0x2] = wrdreg s5; s8 = sshll.u32 s8, $0x1",
    "[dreg:$0x3] = wrdreg s8",
    "[dreg:$0x4] = wrdreg $0xC0",
    "_ = task [dreg:s9], $0x5FFFF",
    "[dreg:$0x0] = wrdreg $0x60",
    "[dreg:$0x2] = wrdreg $0x1",
    "_ = task.clear_ibuf [dreg:s9], $0x6FFFF",
    "_ = swait.ge [sflag:$0x1], $0x1",
    "[sflag:$0x1] = ssyncadd.s32 $0xFFFFFFFF; s0 = srdreg.scid",
    "s0 = sadd.s32 $0x8F2B, s0",
    "[sflag:s0] = ssyncadd.remote.s32 $0x1; (pc) = sbr.abs _section_cstart, $3",
    *["_ = snop"] * 3,
]
_TILE = [
    "s0 = stileid.u32; s3 = rddreg [dreg:$0x0]",
    "s1 = simm.s32 $0x80; p0 = sne.s32 s0, $0x0",
    "[tilespmem:s0], [sflag:$0x1] = stream.linear.gather [hbm4b:s2+s0], $0x80, $0x38",
    "_ = swait.ge [sflag:$0x1], $0x80",
    "[tilespmem:s0], [sflag:$0x5] = stream.indirect.gather [hbm4b:s2+s1], $0x80, s0, s1, $0xb8",
    "_ = swait.ge [sflag:$0x5], $0x4000",
    "[hbm4b:s2+s0] = stream.linear.scatter [tilespmem:s0], [sflag:$0x3], $0x4000, $0x38",
    "_ = swait.ge [sflag:$0x3], $0x4000",
    "[bflag:$0x0] = sbarrier.arrive $0xFFFF",
    "s3 = sadd.s32 @!p0 $0x100000, s3",
    "[sflag:s3] = ssyncadd.tile.s32 @!p0 $0x1; _ = shalt",
]
_LOADER = [
    "_tile_overlayer_lowered:",
    "s0 = rddreg [dreg:$0x0]; s2 = stileid.u32",
    "s1 = rddreg [dreg:$0x1]; p0 = sne.s32 s2, $0x0",
    "s3 = rddreg [dreg:$0x2]; s0 = sadd.s32 $0x0, s0",
    "[timem:s3], [sflag:$0x1C01] = dma.local @!p0 [hbm:s0], s1",
    "_ = swait.ge @!p0 [sflag:$0x1], s1",
    "[sflag:$0x1] = ssyncadd.s32 @!p0 $0x0",
    "[bflag:$0x3] = sbarrier.arrive $0xFFFF",
    "_ = shalt",
]


# What XLA makes of a change of layout, shortened: the tiles have their code, and the sequencer only starts it.
_STARTER = [
    "called_computation_lowered:",
    "_ = swait.ge [sflag:$0x1B8D], $0x1",
    "[sflag:$0x1B8D] = ssyncadd.s32 $0xFFFFFFFF; s8 = simm.s32 $execute0_lowered",
    "[dreg:$0x0] = wrdreg s8; s9 = simm.s32 $0x0",
    "[dreg:$0x1] = wrdreg $0xFFFFFFFF",
    "[dreg:$0x2] = wrdreg $0x1",
    *_SEQUENCER[_SEQUENCER.index("_ = task.clear_ibuf [dreg:s9], $0x6FFFF") :],
]


def gather(tile: Sequence[str] = _TILE, meanwhile: Sequence[str] = ()) -> str:
    """Makes the listing, perhaps with other code for its tiles, and for the sequencer after it has started them."""
    started = _SEQUENCER.index("_ = swait.ge [sflag:$0x1], $0x1")
    sequencer = [*_SEQUENCER[:started], *meanwhile, *_SEQUENCER[started:]]
    return listing(sequencer, ["execute0_lowered:", *tile, *_LOADER])


GATHER = gather()
RESIDENT = listing(_STARTER, ["execute0_lowered:", *_TILE])
