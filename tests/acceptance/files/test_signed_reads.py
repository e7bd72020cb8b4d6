"""Large files are read from the bucket by signed addresses, by users and agents, and not through the server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from switchyard.client import Client
from switchyard.errors import Unavailable
from switchyard.model.files.file_frames import FrameKind
from switchyard.model.files.file_tree import hash_of
from tests.acceptance.files.signed_bucket import (
    SIGNED_FROM,
    SIZES,
    Bed,
    bucket_bed,
    chunks_of,
    output_of,
    signed_keys,
)
from tests.programs import call
from tests.s3_proxy import wait_for_expiry

SIGNED_S = 10  # the least that the config takes


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with bucket_bed(tmp_path, signed_s=SIGNED_S) as running:
        yield running


@pytest.mark.timeout(600)
def test_large_files_are_read_from_the_bucket_by_signed_addresses(bed: Bed) -> None:
    job, content = bed.submit("first", seed=1)
    root = bed.finish(job)
    expected = output_of(content)
    assert bed.fetch(job, "got") == expected, "every byte comes back"

    assert bed.large_keys() == signed_keys(content) | signed_keys(expected)
    for keys, is_user in ((signed_keys(content), False), (signed_keys(expected), True)):
        for key in keys:
            [read] = bed.proxy.reads(key)
            assert read.is_signed_address, "the server itself reads no large object"
            assert (read.status, read.is_user) == (200, is_user)
    reads = [request for request in bed.proxy.requests if request.method == "GET"]
    assert not [read for read in reads if read.is_signed_address and read.size < SIGNED_FROM]

    address = check_one_address(bed, job, root, expected)
    check_expired_addresses(bed, job, expected)
    wait_for_expiry(address)
    assert call("GET", address).status == 403, "an address holds for its time only"
    check_refused_addresses(bed, job)


def check_one_address(bed: Bed, job: str, root: str, expected: dict[str, bytes]) -> str:
    """An address opens one object, for reading."""
    first, second = chunks_of(expected["large"])
    small = hash_of(expected["small"])
    frames = bed.frames(job, root, first, second, small)
    assert frames[small] == (FrameKind.CONTENT, expected["small"])
    assert [frames[digest][0] for digest in (first, second)] == [FrameKind.ADDRESS] * 2
    address = frames[first][1].decode()
    answer = call("GET", address)
    assert (answer.status, hash_of(answer.body)) == (200, first)
    assert call("GET", address.replace(first.hex(), second.hex())).status == 403
    assert call("GET", address.replace(f"files/{first.hex()}", "")).status == 403, "no listing"
    for method in ("PUT", "DELETE"):
        assert call(method, address, b"x" if method == "PUT" else None).status == 403
    assert f"Expires={SIGNED_S}&" in urlsplit(address).query
    return address


def check_expired_addresses(bed: Bed, job: str, expected: dict[str, bytes]) -> None:
    """A user and an agent come too late with an address each. They ask for a new one, and get every byte."""
    of_user = chunks_of(expected["large"])[1].hex()
    of_agent = chunks_of(random.Random(2).randbytes(SIZES["middle"]))[0].hex()
    bed.proxy.hold = {of_user, of_agent}
    second, content = bed.submit("second", seed=2, files=["middle", "small"])
    assert bed.fetch(job, "got-late") == expected
    bed.finish(second)
    assert bed.fetch(second, "got-second") == output_of(content)
    for key, is_user in ((of_user, True), (of_agent, False)):
        reads = [read for read in bed.proxy.reads(key) if read.is_user == is_user][-2:]
        assert [(read.status, read.is_signed_address) for read in reads] == [(403, True), (200, True)]


def check_refused_addresses(bed: Bed, job: str) -> None:
    """The clock of the server is wrong: no address works, and the error says where to look."""
    bed.proxy.spoils = True
    client = Client(bed.stage.url, retry_s=1.0)
    with client, pytest.raises(Unavailable, match="refuses the address that the server gave") as caught:
        client.fetch(job, to=bed.stage.folder / "refused")
    assert "clocks" in caught.value.next_step
    assert "X-Amz" not in f"{caught.value}"
