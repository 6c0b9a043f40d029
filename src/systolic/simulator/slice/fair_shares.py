"""Max-min fairness: the rate of each flow on shared links."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

_F = TypeVar("_F", bound=Hashable)
_L = TypeVar("_L", bound=Hashable)

_FULL = 1 + 1e-9  # shares that differ by less are the same but for rounding


def fair_rates(routes: Mapping[_F, Sequence[_L]], capacity: Callable[[_L], float]) -> dict[_F, float]:
    """Share links among flows by progressive filling.

    All rates grow together; whenever a link is full, the flows on it keep the rate that they have.

    Args:
      routes: every flow's links.
      capacity: of a link.
    """
    on: dict[_L, list[_F]] = {}
    for flow, links in routes.items():
        for link in links:
            on.setdefault(link, []).append(flow)
    left = {link: capacity(link) for link in on}
    growing = {link: len(flows) for link, flows in on.items()}
    # A link's share only grows while others fill up: what it was when it was pushed is at most what it is.
    shares = [(left[link] / count, turn, link) for turn, (link, count) in enumerate(growing.items())]
    heapq.heapify(shares)
    rates: dict[_F, float] = {}
    rate = 0.0
    while len(rates) < len(routes):
        _, turn, link = heapq.heappop(shares)
        if not growing[link]:
            continue
        share = left[link] / growing[link]
        if shares and share > shares[0][0] * _FULL:
            heapq.heappush(shares, (share, turn, link))
            continue
        rate = share if share > rate * _FULL else rate
        for flow in on[link]:
            if flow not in rates:
                rates[flow] = rate
                for route in routes[flow]:
                    left[route] -= rate
                    growing[route] -= 1
    return rates


def changed_rates(
    changed: Iterable[_F],
    route: Callable[[_F], Sequence[_L]],
    flows: Callable[[_L], Collection[_F]],
    rate: Callable[[_F], float],
    capacity: Callable[[_L], float],
) -> dict[_F, float]:
    """Share links again after flows have come or gone, without flows whose rates stay the same.

    Rates are fair if every flow has a bottleneck: a link that is full, and on which none is faster. So only some flows
    are shared out, in what the rest leave them, and as long as one has no bottleneck, those in its way join them.

    Args:
      changed: new flows and the flows that share links with them, and flows on links that others have left.
      route: of a flow.
      flows: that are on a link.
      rate: of a flow until now.
      capacity: of a link.

    Returns:
      The rates of `changed` and of all others that may have changed.
    """
    result: dict[_F, float] = {}
    full: dict[_L, float] = {}

    def fastest(link: _L) -> float:
        """Return the highest rate on the link if it is full; else infinity."""
        share = full.get(link)
        if share is None:
            rates = [result[flow] if flow in result else rate(flow) for flow in flows(link)]
            share = full[link] = max(rates) if sum(rates) * _FULL >= capacity(link) else math.inf
        return share

    waiting = dict.fromkeys(changed)
    while waiting:
        routes = {flow: route(flow) for flow in (*result, *waiting)}
        touched = dict.fromkeys(link for links in routes.values() for link in links)
        others = {link: [flow for flow in flows(link) if flow not in routes] for link in touched}
        left = {link: max(0.0, capacity(link) - sum(map(rate, others[link]))) for link in touched}
        result = fair_rates(routes, left.__getitem__)
        full.clear()
        waiting = {}
        for flow, flow_rate in result.items():
            if all(fastest(link) > flow_rate * _FULL for link in routes[flow]):
                waiting.update(
                    (other, None) for link in routes[flow] for other in others[link] if rate(other) > flow_rate
                )
        for flow in dict.fromkeys(other for link in touched for other in others[link]):
            if all(fastest(link) > rate(flow) * _FULL for link in route(flow)):
                waiting[flow] = None
    return result
