"""Answers that are cut in the head and in the body, through a relay before a real server. Soaked: at every byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchyard import errors
from switchyard.client import Client
from tests.cutter import Cutter
from tests.programs import Server, call, start_server
from tests.soak import SOAKED

RETRY_S = 60.0  # one retry takes a tenth of a second
steps = pytest.mark.parametrize("step", [13, SOAKED(1)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(Path(tmp_path_factory.mktemp("server"))) as running:
        yield running


def cut_first(cut: int) -> Callable[[], int | None]:
    """Cuts the first answer, and no other."""
    cuts: list[int | None] = [cut]
    return lambda: cuts.pop() if cuts else None


def whole_answer(server: Server, act: Callable[[Client], object]) -> bytes:
    with Cutter(server.url, lambda: None) as relay:
        act(Client(relay.url, retry_s=0))
        return relay.answers[0]


def cuts_of(answer: bytes, step: int) -> list[int]:
    """How many bytes come: every so many, and all numbers around the end of the head and of the body."""
    size, head = len(answer), answer.index(b"\r\n\r\n")
    return sorted({*range(0, size, step), *range(head, head + 6), size - 1})


@steps
def test_a_submit_whose_answer_is_cut_anywhere_makes_one_job(server: Server, step: int) -> None:
    answer = whole_answer(server, lambda client: client.submit(["true"]))
    size = len(answer)
    assert size > 200  # status line, headers and a body
    for cut in cuts_of(answer, step):
        with Cutter(server.url, cut_first(cut)) as relay:
            job = Client(relay.url, retry_s=RETRY_S).submit(["true"], labels={"cut": str(cut)})
            made = call("GET", f"{server.url}/v1/jobs?label=cut={cut}").json["items"]
            assert [each["id"] for each in made] == [job.id], f"cut after {cut} of {size} bytes"
            assert len(relay.requests) == 2


@steps
def test_a_no_that_is_cut_is_no_answer(server: Server, step: int) -> None:
    """The status alone is not the server's word: 404 of a cut answer may be anybody's."""

    def ask(client: Client) -> None:
        with pytest.raises(errors.NotFound, match="There is no job"):
            client.job("01JCQ0V7K3E8R5T9W1X2Y4Z6AB")

    for cut in cuts_of(whole_answer(server, ask), step):
        with Cutter(server.url, cut_first(cut)) as relay:
            ask(Client(relay.url, retry_s=RETRY_S))
            assert len(relay.requests) == 2, f"cut after {cut} bytes"


def test_a_change_that_may_not_be_sent_twice_is_sent_once(server: Server) -> None:
    for cut in (0, 5, 12, 13, 20, 40):
        with Cutter(server.url, cut_first(cut)) as relay:
            with pytest.raises(errors.Unavailable) as caught:
                Client(relay.url, retry_s=RETRY_S).create_user(f"user-{cut}")
            assert "may have been done" in caught.value.next_step
            assert len(relay.requests) == 1
