"""Sentences of lessons about several chips."""

from systolic.chips import chip
from systolic.lessons import PartResult, Results

CHIPS = [chip("v5e"), chip("v6e")]


def results(*bytes_: tuple[str, str, int | None]) -> Results:
    return Results(
        tuple(
            PartResult(part=part, chip=name, status="ok", time_us=2.0, hbm_bytes=count) for part, name, count in bytes_
        )
    )


def test_fewer_bytes() -> None:
    found = results(("a", "v5e", 60), ("b", "v5e", 100), ("a", "v6e", 50), ("b", "v6e", 100))
    assert found.fewer_bytes("a", "b", CHIPS) == "v5e 40 %, v6e 50 %"
    assert found.fewer_bytes("a", "b", CHIPS[:1]) == "40 %"
    assert found.fewer_bytes("b", "a", CHIPS[1:]) == "-100 %"


def test_fewer_bytes_where_chips_agree_or_some_were_not_simulated() -> None:
    alike = results(("a", "v5e", 3), ("b", "v5e", 4), ("a", "v6e", 6), ("b", "v6e", 8))
    assert alike.fewer_bytes("a", "b", CHIPS) == "25 %"
    none = results(("a", "v5e", 3), ("b", "v5e", None), ("a", "v6e", None), ("b", "v6e", 8))
    assert none.fewer_bytes("a", "b", CHIPS) == ""
