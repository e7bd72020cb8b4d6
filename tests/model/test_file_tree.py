"""Trees of files and frames of objects: what is encoded comes back, and each tree has exactly one form."""

from __future__ import annotations

import contextlib
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.model.files.file_frames import (
    SMALL_PIECE_BYTES,
    BadFrame,
    Frame,
    FrameKind,
    decode_frames,
    encode_frame,
)
from switchyard.model.files.file_tree import (
    CHUNK_BYTES,
    HEADER,
    NAME_BYTES_MAX,
    TREE_BYTES_MAX,
    ZEROS,
    BadTree,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    bad_name,
    chunk_spans,
    decode_tree,
    encode_tree,
    hash_of,
    is_inside,
)

DIGEST = hash_of(b"x")
digests = st.binary(min_size=32, max_size=32)
names = st.binary(min_size=1, max_size=NAME_BYTES_MAX).filter(lambda name: not bad_name(name))


@st.composite
def file_entries(draw: st.DrawFn) -> FileEntry:
    count = draw(st.integers(0, 4))
    size = 0 if count == 0 else draw(st.integers((count - 1) * CHUNK_BYTES + 1, count * CHUNK_BYTES))
    chunks = draw(st.lists(digests | st.just(ZEROS), min_size=count, max_size=count))
    return FileEntry(draw(names), size, draw(st.booleans()), chunks)


entries = st.lists(
    file_entries()
    | st.builds(LinkEntry, names, st.binary(min_size=1, max_size=64))
    | st.builds(FolderEntry, names, digests, st.integers(0, 2**62), st.integers(0, 2**62)),
    unique_by=lambda entry: entry.name,
    max_size=8,
)


@settings(max_examples=50, deadline=None)
@given(entries, st.randoms(use_true_random=False))
def test_a_tree_comes_back_and_has_one_form(tree: list[Entry], random) -> None:
    shuffled = list(tree)
    random.shuffle(shuffled)
    data = encode_tree(shuffled)
    assert data == encode_tree(tree)
    assert decode_tree(data) == sorted(tree, key=lambda entry: entry.name)


@settings(max_examples=50, deadline=None)
@given(entries, st.data())
def test_no_changed_byte_is_taken_for_the_same_tree(tree: list[Entry], data: st.DataObject) -> None:
    encoded = bytearray(encode_tree(tree))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        decoded = decode_tree(bytes(encoded))
    except BadTree:
        return
    assert encode_tree(decoded) == encoded
    assert decoded != sorted(tree, key=lambda entry: entry.name)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_tree_or_refused(data: bytes) -> None:
    for candidate in (data, HEADER + data):
        with contextlib.suppress(BadTree):
            assert encode_tree(decode_tree(candidate)) == candidate


def packed(*rows: object) -> bytes:
    return HEADER + msgspec.msgpack.encode(rows)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no tree"),
        (b"#!/bin/sh", "no tree"),
        (packed(["l", b"..", b"x"]), "names no file"),
        (packed(["l", b".", b"x"]), "names no file"),
        (packed(["l", b"", b"x"]), "no tree"),
        (packed(["l", b"a/b", b"x"]), "slash"),
        (packed(["l", b"/etc/passwd", b"x"]), "slash"),
        (packed(["l", b"a\0", b"x"]), "NUL"),
        (packed(["l", b"a" * 256, b"x"]), "no tree"),
        (packed(["l", b"b", b"x"], ["l", b"a", b"x"]), "out of order"),
        (packed(["l", b"a", b"x"], ["l", b"a", b"y"]), "twice"),
        (packed(["f", b"a", 5, False, []]), "0 chunks"),
        (packed(["f", b"a", 0, False, [DIGEST]]), "1 chunks"),
        (packed(["f", b"a", CHUNK_BYTES + 1, False, [DIGEST]]), "1 chunks"),
        (packed(["f", b"a", 5, False, [b"short"]]), "without a SHA-256"),
        (packed(["f", b"a", -1, False, []]), "no tree"),
        (packed(["f", b"a", 5, 1, [DIGEST]]), "no tree"),
        (packed(["f", b"a", 5, False, [DIGEST], 0]), "no tree"),
        (packed(["d", b"a", b"short", 0, 0]), "no tree"),
        (packed(["x", b"a"]), "no tree"),
        (packed(["l", b"a", b"x"]) + b"\xc0", "no tree"),
        (HEADER + b"\xdc\x00\x01" + msgspec.msgpack.encode(["l", b"a", b"x"]), "one form"),
        (HEADER + b"\0" * TREE_BYTES_MAX, "no tree"),
    ],
)
def test_a_tree_that_no_folder_can_have_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(BadTree, match=says):
        decode_tree(data)


@pytest.mark.parametrize(
    ("folder", "target", "is_in"),
    [
        ((), b"a", True),
        ((), b"a/../b", False),  # `a` may be a link
        ((b"d",), b"../a", True),
        ((b"d",), b"..", True),
        ((b"d",), b"../..", False),
        ((), b"..", False),
        ((), b"a/../../b", False),
        ((), b"/etc/passwd", False),
        ((b"d",), b"./.././../d", False),
        ((), b"a\0", False),
    ],
)
def test_a_link_leads_inside_or_not(folder: tuple[bytes, ...], target: bytes, is_in: bool) -> None:
    assert is_inside(folder, target) == is_in


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 10 * 2**30])
def test_chunks_cover_a_file(size: int) -> None:
    spans = chunk_spans(size)
    assert sum(span.size for span in spans) == size
    assert [span.offset for span in spans] == list(range(0, size, CHUNK_BYTES))


frames = st.lists(st.builds(Frame, st.sampled_from(FrameKind), digests, st.binary(max_size=300)), max_size=6)


@settings(max_examples=50, deadline=None)
@given(frames, st.data())
def test_frames_come_back_from_any_pieces(sent: list[Frame], data: st.DataObject) -> None:
    body = b"".join(encode_frame(*frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert list(decode_frames(pieces)) == sent


@pytest.mark.parametrize("step", [1, 3, SMALL_PIECE_BYTES - 1, SMALL_PIECE_BYTES])
def test_a_body_in_tiny_pieces_takes_little_memory(step: int) -> None:
    data = bytes(range(256)) * 400
    sent = [Frame(FrameKind.CONTENT, hash_of(data), data)] * 2
    body = b"".join(encode_frame(*frame) for frame in sent)
    tracemalloc.start()
    try:
        assert list(decode_frames(body[begin : begin + step] for begin in range(0, len(body), step))) == sent
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(data), "the two frames, and one more before it is whole"


@settings(max_examples=50, deadline=None)
@given(frames.filter(bool), st.data())
def test_a_body_that_is_cut_at_any_byte_is_noticed(sent: list[Frame], data: st.DataObject) -> None:
    body = b"".join(encode_frame(*frame) for frame in sent)
    cut = data.draw(st.integers(0, len(body)))
    ends = {sum(len(encode_frame(*frame)) for frame in sent[:count]) for count in range(len(sent) + 1)}
    if cut in ends:
        assert list(decode_frames([body[:cut]])) == sent[: sorted(ends).index(cut)]
    else:
        with pytest.raises(BadFrame, match="cut off"):
            list(decode_frames([body[:cut]]))


@pytest.mark.parametrize("head", [b"\x09", b"\x00" + bytes(32) + b"\xff\xff\xff\xff"])
def test_a_frame_of_another_kind_or_of_any_size_is_refused(head: bytes) -> None:
    with pytest.raises(BadFrame):
        list(decode_frames([head + bytes(40)]))


def test_frames_and_trees_have_the_documented_bytes() -> None:
    """docs/explanation/files.md tells the format to other clients."""
    assert encode_frame(FrameKind.CONTENT, bytes(range(32)), b"ab") == b"\0" + bytes(range(32)) + b"\0\0\0\x02ab"
    tree = encode_tree([FileEntry(b"x", 2, True, [bytes(32)]), FolderEntry(b"d", bytes(32), 1, 2)])
    digest = b"\xc4\x20" + bytes(32)
    folder = b"\x95\xa1d\xc4\x01d" + digest + b"\x01\x02"
    assert tree == b"yard-tree 1\n\x92" + folder + b"\x95\xa1f\xc4\x01x\x02\xc3\x91" + digest
