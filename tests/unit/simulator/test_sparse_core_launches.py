"""Launches of SparseCores: their order in a module, and the names of programs by number."""

from __future__ import annotations

from systolic.simulator import parse_hlo
from systolic.simulator.hardware.values import MASK
from systolic.simulator.reading.listing import parse_listing
from systolic.simulator.sparse_core.launch import names_by_number
from systolic.simulator.sparse_core.listing import IMAGE_GRANULES


def computation(header: str, *instructions: str) -> str:
    lines = "".join(f"  {instruction}\n" for instruction in instructions)
    return f"{header} (p: f32[8]) -> f32[8] {{\n{lines}}}\n\n"


def start(name: str, thread: str = "sparsecore") -> str:
    return f'%{name} = f32[8]{{0}} call-start(%p), async_execution_thread="{thread}", calls=%called'


def loop(body: str, opcode: str = "while", attribute: str = "condition=%c, body") -> str:
    return f"%{opcode}.{body} = f32[8]{{0}} {opcode}(%p), {attribute}=%{body}"


def test_bodies_of_loops_are_entered_where_the_schedule_has_the_loops() -> None:
    text = "HloModule jit_step\n\n" + "".join(
        (
            computation("%forward", start("b"), start("c")),
            computation("%inner", start("e")),
            computation("%backward", start("d"), loop("inner"), start("f")),
            computation("%called", start("copy")),  # within a program of the SparseCores
            computation("%hosted", start("g", "host")),
            computation("ENTRY %main", start("a"), loop("forward"), loop("backward"), start("h")),
        )
    )
    assert parse_hlo(text).launches == tuple("abcdefh")


def test_branches_are_entered_and_no_computation_twice() -> None:
    text = "".join(
        (
            computation("%one", start("a"), loop("main")),
            computation("%two", start("b")),
            computation(
                "ENTRY %main",
                "%conditional = f32[8]{0} conditional(%p, %p, %p), branch_computations={%one, %two}",
                loop("two", "call", "to_apply"),
                loop("nowhere"),
            ),
        )
    )
    assert parse_hlo(text).launches == ("a", "b")


def top_level(*descriptors: tuple[int | None, int | None]) -> str:
    """Return a listing that stores the number and size of each launch; None: they are loaded."""
    lines: list[str] = []
    for at, words in enumerate(descriptors):
        for place, word in zip(("53", "5a"), words, strict=True):
            value = "sld [smem:[#allocation1]]" if word is None else f"smov {word} /* materialized constant */"
            lines += [
                f"%s{at}{place}_s1 = {value}",
                f"%{at} = sst [smem:[#allocation36 + $0x{place}]] %s{at}{place}_s1",
            ]
    return "".join(f"{address:#6x}   :  {{ {line} }}\n" for address, line in enumerate(lines))


def test_programs_have_the_numbers_that_launches_store_in_this_order() -> None:
    listing = top_level((MASK, None), (0, 424), (2, 424), (1, 738), (MASK, IMAGE_GRANULES))
    assert names_by_number(parse_listing("TLP", listing), ("a", "b", "c")) == {0: "a", 2: "b", 1: "c"}
    setting_up_has_a_number = top_level((0, IMAGE_GRANULES), (2, 424), (1, 424))
    assert names_by_number(parse_listing("TLP", setting_up_has_a_number), ("a", "b")) == {2: "a", 1: "b"}


def test_no_numbers_are_known_where_launches_are_not_as_many_as_names() -> None:
    assert names_by_number(parse_listing("TLP", top_level((0, 424), (1, 424))), ("a",)) == {}
