"""The bar for files: bytes, the rate of what travels now, and never wider than the terminal."""

from __future__ import annotations

import pytest

from switchyard.cli.terminal.progress import format_transfer

MIB = 2**20


@pytest.mark.parametrize(
    ("done", "passed_s", "done_before", "columns", "text"),
    [
        (12, 0.1, 0, 80, "sending ▕██████░░░░░░░░░░░░░░░░░░▏ 12MiB of 48MiB"),
        (12, 2.0, 0, 80, "sending ▕██████░░░░░░░░░░░░░░░░░░▏ 12MiB of 48MiB, 6MiB/s"),
        (12, 2.0, 8, 80, "sending ▕██████░░░░░░░░░░░░░░░░░░▏ 12MiB of 48MiB, 2MiB/s"),
        (48, 2.0, 48, 80, "sending ▕████████████████████████▏ 48MiB of 48MiB, 0B/s"),
        (12, 2.0, 0, 50, "sending ▕████░░░░░░░░░░░░▏ 12MiB of 48MiB, 6MiB/s"),
        (12, 2.0, 0, 37, "sending 12MiB of 48MiB, 6MiB/s"),
        (12, 2.0, 0, 10, "sending 1"),
        (12, 2.0, 0, 0, ""),
    ],
)
def test_a_line_of_the_bar(done: int, passed_s: float, done_before: int, columns: int, text: str) -> None:
    shown = format_transfer("upload", done * MIB, 48 * MIB, passed_s, done_before=done_before * MIB, columns=columns)
    assert shown == text
    assert len(shown) < max(columns, 1)
