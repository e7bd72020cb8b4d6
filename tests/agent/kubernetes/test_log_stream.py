"""Lines of the log API: stamps taken off, and output that goes on exactly where an interruption left it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.features.kubernetes.agent.pods.log_stream import LogPosition, LogReader


def stamp(seconds: int, nanos: int = 0) -> str:
    return f"2026-01-02T03:04:{seconds:02}.{nanos:09}Z"


def a_log(*lines: tuple[str, str]) -> bytes:
    return "".join(f"{at} {text}" for at, text in lines).encode()


def read_all(reader: LogReader, log: bytes, size: int = 7) -> bytes:
    return b"".join(reader.feed(log[at : at + size]) for at in range(0, len(log), size)) + reader.end()


@pytest.mark.parametrize("size", [1, 2, 7, 40, 10_000])
def test_stamps_are_taken_off_however_the_log_is_cut(size: int) -> None:
    log = a_log((stamp(1), "one\n"), (stamp(2), "\n"), (stamp(2), "  two words\n"), (stamp(3), "no newline"))
    reader = LogReader(LogPosition())
    assert read_all(reader, log, size) == b"one\n\n  two words\nno newline"
    assert reader.position == LogPosition(size=17, stamp=stamp(2), count=2)


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    log = f"{stamp(1)} ".encode() + bytes(range(11, 256)) + b"\n"
    assert read_all(LogReader(LogPosition()), log) == bytes(range(11, 256)) + b"\n"


@pytest.mark.parametrize(
    ("last", "since"),
    [
        ("", ""),
        ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.1+02:00", "2026-01-02T03:04:05+02:00"),
    ],
)
def test_the_api_is_asked_for_whole_seconds(last: str, since: str) -> None:
    assert LogPosition(1, last, 1).since == since


def test_known_lines_are_skipped_and_equal_stamps_are_counted() -> None:
    lines = [(stamp(1), "a\n"), (stamp(1), "b\n"), (stamp(1), "c\n"), (stamp(2), "d\n")]
    position = LogPosition(size=4, stamp=stamp(1), count=2)
    assert read_all(LogReader(position), a_log(*lines)) == b"c\nd\n"


def test_lines_of_two_streams_may_be_out_of_order_by_a_little() -> None:
    lines = [(stamp(1, 5000), "out\n"), (stamp(1, 4000), "err\n"), (stamp(1, 9000), "new\n")]
    assert read_all(LogReader(LogPosition(4, stamp(1, 5000), 1)), a_log(*lines)) == b"err\nnew\n"
    assert read_all(LogReader(LogPosition(8, stamp(1, 4000), 1)), a_log(*lines)) == b"new\n"


def test_after_a_rotation_output_goes_on_with_the_first_line_that_is_newer() -> None:
    position = LogPosition(100, stamp(1), 3)
    assert read_all(LogReader(position), a_log((stamp(5), "later\n"))) == b"later\n"


def test_the_rest_of_a_long_line_from_before_is_skipped() -> None:
    log = b"rest of a line that is known\n" + a_log((stamp(1), "known\n"), (stamp(2), "new\n"))
    assert read_all(LogReader(LogPosition(50, stamp(1), 1)), log) == b"new\n"


def test_a_message_of_the_kubelet_without_a_stamp_is_output() -> None:
    text = b"unable to retrieve container logs for containerd://x"
    assert read_all(LogReader(LogPosition()), text) == text


TEXTS = st.text(alphabet="ab \t2-T:Z.", max_size=60)


@given(
    texts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), TEXTS), max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    size=st.integers(1, 50),
    is_last_whole=st.booleans(),
)
def test_interruptions_lose_and_repeat_nothing(
    texts: list[tuple[int, int, str]], cuts: list[int], size: int, is_last_whole: bool
) -> None:
    """A log is read several times, each time up to a cut, and at last to its end."""
    lines = [(stamp(s, n * 10**8), f"{text}\n") for s, n, text in sorted(texts, key=lambda row: row[:2])]
    if lines and not is_last_whole:
        lines[-1] = (lines[-1][0], lines[-1][1].rstrip("\n") + "x")
    output, position = b"", LogPosition()
    for cut in [*cuts, 10**9]:
        shown = a_log(*[row for row in lines if row[0] >= position.since.removesuffix("Z")])
        reader = LogReader(position)
        output = (
            output[: position.size] + read_all(reader, shown, size)
            if cut > len(shown)
            else (
                output[: position.size]
                + b"".join(reader.feed(shown[at : min(at + size, cut)]) for at in range(0, cut, size))
            )
        )
        position = reader.position
        assert position.size <= len(output)
    assert output == "".join(text for _, text in lines).encode()
