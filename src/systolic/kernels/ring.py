"""Copies that start before their use, through a few slots of VMEM in turn, each with its semaphore.

A slot that is read is refilled as soon as its content has been used: before the first step (`fill`), then a fixed
number of steps ahead (`fetch_next`), or as far as steps that are known only at run time leave room (`fetch_while`). A
slot that is written is waited for before it is written again (`reserve`), and the last ones at the end (`drain`).

The differences between kernels are parameters: the number of slots, for how many steps a block stays, how the copies of
an item are described, and in which order that is done. The order matters because it is the order in which programs
compute addresses: another one makes the same copies in other cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

Act = Callable[[Any], None]  # on a copy


class Front(Protocol):
    """The next step whose copies are to be started."""

    @property
    def number(self) -> Any: ...


F = TypeVar("F", bound=Front)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ring:
    """Slots and the copies that go through them."""

    slots: int  # number of slots
    # Calls its second argument with each copy of an item. An item is the number of the copy, which uses the slot of
    # that number modulo `slots`, or what the kernel knows a copy by.
    copies: Callable[[Any, Act], None]
    reuse_distance: int = 1  # steps for which a block stays in its slot
    # Whether a copy is described before the condition under which it starts or is waited for, instead of under it.
    described_first: bool = False

    def slot(self, number: Any) -> Any:
        return lax.rem(number, jnp.int32(self.slots))

    def start(self, item: Any) -> None:
        self.copies(item, lambda copy: copy.start())

    def wait(self, item: Any) -> None:
        self.copies(item, lambda copy: copy.wait())

    def start_if(self, condition: Any, item: Any) -> None:
        if self.described_first:
            self.copies(item, lambda copy: pl.when(condition)(copy.start))
        else:
            pl.when(condition)(lambda: self.start(item))

    def wait_if(self, condition: Any, item: Any) -> None:
        if self.described_first:
            self.copies(item, lambda copy: pl.when(condition)(copy.wait))
        else:
            pl.when(condition)(lambda: self.wait(item))

    def start_all(self, begin: Any, end: Any) -> None:
        """Start the copies from number `begin` up to `end` in a loop."""
        _in_loop(begin, end, self.start)

    def fill(self, steps: Any, begin: int = 0) -> None:
        """Start the copies from number `begin` on that are due before the first step, in straight code."""
        for number in range(begin, self.slots - 1):
            if not isinstance(steps, int):
                self.start_if(number < steps, jnp.int32(number))
            elif number < steps:
                self.start(number)

    def fetch_next(self, step: Any, steps: Any) -> None:
        """Start the copy of the last step that has a slot while this one uses its own, if there is such a step."""
        stay = self.reuse_distance
        if stay == 1:
            later = step + (self.slots - 1)
            self.start_if(later < steps, later)
        elif stay < steps:
            later = step + stay * (self.slots - 1)
            self.start_if((step % stay == 0) & (later < steps), later)

    def fetch_while(
        self, front: F, step: Any, steps: Any, rooms: Sequence[Callable[[F], Any]], start: Callable[[F], F]
    ) -> F:
        """Start the copies of steps from `front` on while they have slots, and return the new front.

        Args:
          rooms: conditions of other rings that a step's copies also use.
          start: starts the copies of a step and returns the next one.
        """

        def has_room(front: F) -> Any:
            within = front.number < jnp.minimum(step + self.slots, steps)
            for room in rooms:
                within = within & room(front)
            return within

        return lax.while_loop(has_room, start, front)

    def reserve(self, number: Any, item: Any = None, *, when: Any = True) -> None:
        """Wait until the slot of a number may be written.

        Args:
          item: the copy that the slot was stored by; any of its size does. None: the number before in this slot.
          when: the condition under which a step writes to it first.
        """
        is_used = number >= self.slots if when is True else when & (number >= self.slots)
        pl.when(is_used)(lambda: self.wait(number - self.slots if item is None else item))

    def wait_all(self, begin: Any, end: Any, item_of: Callable[[Any], Any] = lambda number: number) -> None:
        """Wait for the copies from number `begin` up to `end`; in straight code if that is known while it is traced."""
        if isinstance(begin, int) and isinstance(end, int):
            for number in range(begin, end):
                self.wait(item_of(number))
        else:
            _in_loop(begin, end, lambda number: self.wait(item_of(number)))

    def drain(self, stored: Any) -> None:
        first = stored - self.slots
        self.wait_all(max(first, 0) if isinstance(first, int) else jnp.maximum(first, 0), stored)


def _in_loop(begin: Any, end: Any, act: Callable[[Any], None]) -> None:
    def step(number: Any, carry: None) -> None:
        act(number)
        return carry

    lax.fori_loop(begin, end, step, None)
