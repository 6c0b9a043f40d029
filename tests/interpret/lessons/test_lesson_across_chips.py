"""The steps of the lesson on virtual devices, against float64; late waits are found."""

import pytest

from systolic.chips import chip
from systolic.compiler import WorkerPool
from systolic.lessons.across_chips import PRODUCTS, product_us
from systolic.lessons.on_ring import RingPart, run_virtually


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(max_workers=1, time_limit_s=120) as made:
        yield made


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "part",
    # Half of both ways is one way.
    [pytest.param(part, marks=pytest.mark.slow if "one way" in part.name else ()) for part in PRODUCTS],
    ids=lambda part: part.name,
)
def test_on_eight_devices(pool: WorkerPool, part: RingPart) -> None:
    outcome = run_virtually(pool, part, chip("v5e")).result()
    rules = {finding.rule for finding in outcome.findings if finding.grade == "error"}
    assert outcome.summary.ran
    if part.finds:
        assert part.finds in rules
    else:
        assert not rules
        assert outcome.summary.error is not None
        assert outcome.summary.tolerance is not None
        assert outcome.summary.error <= outcome.summary.tolerance


def test_times_of_the_bytes_and_of_the_products() -> None:
    v6e = chip("v6e")
    assert v6e.links is not None
    gathered, one_way, both_ways = PRODUCTS[:3]
    # Seven chunks of 256 × 4096 bfloat16, half of each in either direction; eight products of 256 × 4096 × 2048.
    assert both_ways.wire_us(v6e) == pytest.approx(7 * 2**20 / v6e.links.bytes_per_s * 1e6)
    assert one_way.wire_us(v6e) == 2 * (both_ways.wire_us(v6e) or 0.0)
    assert gathered.wire_us(v6e) == both_ways.wire_us(v6e)
    assert product_us(v6e) == pytest.approx(8 * 2**32 / 918e6, rel=0.01)
