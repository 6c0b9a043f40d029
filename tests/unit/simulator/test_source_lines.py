"""The lines of the source that the compiler writes behind instructions."""

from __future__ import annotations

from systolic.simulator.source_lines import lines_of_bundles

LISTING = """= control target key start
     0   :  { %s1 = sld [smem:[#allocation0]] /* core id */ }
  0x9f   : > { %1 = vst [vmem:[%s1]] %v1 /* loc("/home/me/a b.py":45:21 to :97) */  ;;  %v2 = vld [vmem:[%s1]] \
/* combine */  ;;  %2 = vmatpush.msra.mxu0 %v3 /* loc("/home/me/a b.py":47:4 to 48:3) */ }
  0xa0   : > { %3 = vst [vmem:[%s1]] %v1 /* loc("k.py":9:1 to :2) */  ;;  %4 = vtrace 1 /* loc("k.py":9:1) */ }
"""


def test_bundles_are_shared_by_the_lines_of_their_instructions() -> None:
    assert lines_of_bundles(LISTING) == {
        0x9F: {"/home/me/a b.py:45": 0.5, "/home/me/a b.py:47": 0.5},
        0xA0: {"k.py:9": 1.0},
    }
