"""Names, titles and labels have no characters that reorder or hide text, and old ones are shown without them."""

from __future__ import annotations

import msgspec
import pytest

from switchyard.cli.terminal.output import printable
from switchyard.errors import Malformed
from switchyard.model.cluster.cluster import ClusterRequest
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.access import TokenRequest, UserRequest
from switchyard.model.rules.names import printable_line
from switchyard.model.wire.api import ProjectRequest
from switchyard.model.wire.decode import JsonReader

BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
INVISIBLE = (
    "\u00ad\u034f\u115f\u1160\u17b4\u180e\u200b\u200c\u200d\u2060\u2064\u206f\u2800\u3164\ufeff\uffa0\ufff9\U000e0041"
)
ORDINARY = ["Größe 12 µm", "Δx ≤ 3", "模型", "תרגיל 1", "تجربة", "ngày", "🚀 go", "❤️"]
JOB = {"spec": {"command": ["true"]}}


def doors(text: str) -> list[tuple[type, dict[str, object]]]:
    return [
        (JobRequest, {**JOB, "name": text}),
        (JobRequest, {**JOB, "labels": {"team": text}}),
        (JobRequest, {"spec": {"command": ["true"], "execution": {"labels": {"team": text}}}}),
        (ProjectRequest, {"name": "p", "title": text}),
        (ProjectRequest, {"name": "p", "description": text}),
        (ProjectRequest, {"name": "p", "labels": {"team": text}}),
        (ClusterRequest, {"name": "c", "labels": {"site": text}}),
        (UserRequest, {"name": "u", "full_name": text}),
        (TokenRequest, {"note": text}),
    ]


@pytest.mark.parametrize("char", [*BIDIRECTIONAL, *INVISIBLE], ids=lambda char: f"U+{ord(char):04X}")
def test_every_door_refuses_characters_that_reorder_or_hide_text(char: str) -> None:
    for type_, body in doors(f"a{char}b"):
        with pytest.raises(Malformed, match="invisible and bidirectional characters are not allowed"):
            JsonReader(type_).read(msgspec.json.encode(body))
    for type_, field in ((JobRequest, "project"), (ClusterRequest, "name"), (UserRequest, "name")):
        body = (JOB if type_ is JobRequest else {}) | {field: f"a{char}b"}
        with pytest.raises(Malformed, match="Not a valid name"):
            JsonReader(type_).read(msgspec.json.encode(body))


@pytest.mark.parametrize("text", ORDINARY)
def test_words_of_all_languages_are_accepted_and_shown_as_they_are(text: str) -> None:
    for type_, body in doors(text):
        JsonReader(type_).read(msgspec.json.encode(body))
    assert printable(text) == printable_line(text) == text


@pytest.mark.parametrize("char", [*BIDIRECTIONAL, *INVISIBLE, "\x1b", "\n", "\U0001d173"])
def test_text_from_before_is_shown_without_them(char: str) -> None:
    assert printable(f"a{char}b") == printable_line(f"a{char}b") == "a b"
