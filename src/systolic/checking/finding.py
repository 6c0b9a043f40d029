"""What a check says of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# `error`: wrong numbers, or no program. `warning`: right today, or slower or less exact than it looks. `note`: worth
# knowing.
Grade = Literal["error", "warning", "note"]
GRADES: tuple[Grade, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule that a kernel breaks.

    Attributes:
      rule: its name, as in docs/check.md.
      value: what was found, with numbers.
      limit: what the rule asks for, and what comes of breaking it.
      fix: what to change.
      kernel: its name; "" where the finding is about the function around it.
      where: "file.py:12 in name"; "" where it is not known.
      chip: on which it holds; "": on all of them.
      detail: verbatim text of a tool, such as the compiler's; "" if there is none.
    """

    rule: str
    grade: Grade
    value: str
    limit: str
    fix: str
    kernel: str = ""
    where: str = ""
    chip: str = ""
    detail: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        on = f" on {self.chip}" if self.chip else ""
        return f"{self.grade}: {self.rule}{on}: {self.value}; {self.limit}; {self.fix}{place}"
