"""The mistakes of one compilation, all of them, each with Flyte's code and the node."""

from __future__ import annotations

from dataclasses import dataclass, field

from switchyard.features.flyte.workflow.values.limits import MISTAKES_SHOWN
from switchyard.model.rules.names import printable_line

TEXT_CHARS_MAX = 300  # of one mistake: a type may have megabytes


@dataclass(frozen=True, slots=True)
class CompileMistake:
    """`where`: the node, or the name of a sub-workflow and the node."""

    code: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"Code: {self.code}, Node Id: {self.where}, Description: {self.text}"


@dataclass
class Mistakes:
    """Collects mistakes. The first ones are kept, all are counted."""

    first: list[CompileMistake] = field(default_factory=list)
    count: int = 0

    def add(self, code: str, where: str, text: str) -> None:
        self.count += 1
        if len(self.first) < MISTAKES_SHOWN:
            self.first.append(CompileMistake(code, short(where), short(text)))

    def __bool__(self) -> bool:
        return self.count > 0

    def as_text(self) -> str:
        lines = [f"{number}: {mistake}" for number, mistake in enumerate(self.first, start=1)]
        if self.count > len(self.first):
            lines.append(f"and {self.count - len(self.first)} more")
        return f"Collected Errors: {self.count}\n" + "\n".join(lines)


def short(text: str) -> str:
    """Foreign text for a message: one line, bounded."""
    line = printable_line(text[: TEXT_CHARS_MAX + 1])
    return line if len(text) <= TEXT_CHARS_MAX else f"{line[:TEXT_CHARS_MAX]}…"
