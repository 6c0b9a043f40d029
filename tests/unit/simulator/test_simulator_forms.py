"""Forms of listings that only whole programs have, on listings small enough to count by hand."""

from __future__ import annotations

import pytest
from simulator_listings import value


@pytest.mark.parametrize("taken", [0, 1])
def test_a_predicate_that_two_paths_have_written(taken: int) -> None:
    code = (
        f"%p9_p9 = scmp.eq.s32.totalorder 1, {taken}  ;;  %p1_p4 = scmp.eq.s32.totalorder 1, 1",
        "%9 = sbr.rel (%p9_p9) target = $region7",
        *[""] * 3,
        "/* End region 6 */",
        "%p2_p4 = scmp.eq.s32.totalorder 1, 0",
        "PF|%p3_p4 = pphi %p1_p4, %p2_p4 /* Start/End empty region 7 */",
        "%s1_s1 = scalar_select %p3_p4, 5, 9",
    )
    assert value(*code, register="%s1_s1") == (5 if taken else 9)
