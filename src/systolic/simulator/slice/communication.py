"""What one core has sent to others, by communication."""

from __future__ import annotations

from dataclasses import dataclass, field

from systolic.simulator.slice.routes import Route


@dataclass(slots=True)
class Sent:
    """What went out for one communication, over all its calls."""

    copies: int = 0
    signals: int = 0
    sent_bytes: int = 0
    axes: set[str] = field(default_factory=set)


class Communication:
    """What one core has sent, by the label of the communication."""

    def __init__(self) -> None:
        self.by_label: dict[str, Sent] = {}

    def sent(self, label: str, time: int, size_bytes: int, route: Route) -> None:
        """Notes a copy."""
        found = self.by_label.setdefault(label, Sent())
        found.copies += 1
        found.sent_bytes += size_bytes
        found.axes.update(link.axis for link in route.links)

    def signalled(self, label: str, time: int) -> None:
        """Notes a signal."""
        self.by_label.setdefault(label, Sent()).signals += 1
