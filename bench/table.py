"""A table of results, as Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Table:
    """A title, a line on how it was measured, columns and rows."""

    title: str
    about: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append([f"{cell:,.0f}" if isinstance(cell, float) else str(cell) for cell in cells])

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.about, "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines)
