"""Job ids of Flux in every form that people paste."""

from __future__ import annotations

import pytest

from switchyard.features.flux.agent.follow.job_ids import handle_of, parse_job_id, show_job_id, split_handle
from tests.agent.flux.captures import JOB_IDS


@pytest.mark.parametrize(("number", "text"), JOB_IDS.items())
def test_every_form_is_the_same_number(number: int, text: str) -> None:
    dotted = ".".join(f"{number:016x}"[place : place + 4] for place in range(0, 16, 4))
    for form in (text, text.replace("ƒ", "f"), str(number), hex(number), dotted):
        assert parse_job_id(form) == number
    assert show_job_id(number) == text.replace("ƒ", "f")


@pytest.mark.parametrize(
    "text", ["", "f", "ƒ", "f0", "fO", "yard-1", "-1", "0x", "18446744073709551616", "f" + "z" * 12, "1.2.3"]
)
def test_what_is_no_id_is_none(text: str) -> None:
    assert parse_job_id(text) is None


def test_the_smallest_and_the_largest_id() -> None:
    assert [parse_job_id(show_job_id(number)) for number in (0, 2**64 - 1)] == [0, 2**64 - 1]


def test_a_native_id_names_the_attempt() -> None:
    handle = handle_of(340711702528, "yard-01JC-1-7")
    assert handle == "f9x6XXwm/yard-01JC-1-7"
    assert split_handle(handle) == (340711702528, "yard-01JC-1-7")
    assert split_handle("yard-01JC-1-7") == (None, "")
