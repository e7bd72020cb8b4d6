"""Jobspecs at Rainbow's door: what is read, what is refused, and that neither takes more than a bounded effort."""

from __future__ import annotations

import json

import msgspec
import pytest

from switchyard.errors import Malformed
from switchyard.features.rainbow.server.calls import read_request, received_job
from switchyard.features.rainbow.service.pollers import ANSWER_BYTES, Handover
from switchyard.model.cluster.poll import Lease
from tests.server.rainbow_door import JOB

LONG = "x" * 60_000
FLUX = """\
version: 1
resources: [{type: slot, count: 1, label: one, with: [{type: core, count: 1}]}]
tasks: [{command: [app], slot: one, count: {per_slot: 1}}]
"""


def read(text: str) -> object:
    return read_request(text, name="j", clusters=[], algorithm="", options={})


@pytest.mark.parametrize(
    "text",
    [
        JOB.replace("  a:", "  1:").replace("resources: a", "resources: '1'"),
        JOB + "attributes: {user: {2020-01-01: 1, 3: .nan}}\n",
        JOB + "attributes: {user: {when: 2020-01-01, many: !!set {a, b}, raw: !!binary aGk=}}\n",
        "\ufeff" + JOB,
        JOB + "attributes: {user: {on: 1}}\n",
    ],
    ids=range(5),
)
def test_what_is_odd_and_means_something(text: str) -> None:
    assert msgspec.json.encode(read(text), order="sorted")


@pytest.mark.parametrize(
    "text",
    [
        JOB + "attributes: {user: {~: 1}}\n",
        JOB + "attributes: {user: {[1, 2]: 1}}\n",
        JOB + "attributes: {user: &a {x: *a}}\n",
        JOB + "attributes: {user: {x: !!python/object/apply:os.getpid []}}\n",
        JOB + f"attributes: {{user: {{long: &long {LONG}, many: [{', '.join(['*long'] * 2000)}]}}}}\n",
        JOB.replace("[app]", f"[{'x' * 5_000_000}]"),
        JOB.replace("[app]", json.dumps(["'" * 700_000])),
        JOB + "# " + "é" * 2_200_000,
        JOB + "x: !!timestamp foo\n",
        FLUX.replace("type: core", "type: [core]"),
        FLUX.replace("type: core", "type: {core: 1}"),
    ],
    ids=range(11),
)
def test_what_nobody_could_store_or_receive_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        read(text)


def test_what_is_read_can_be_received_in_one_answer() -> None:
    text = JOB + "# " + '"' * 1_900_000
    request = read_request(text, name="n" * 128, clusters=[], algorithm="", options={})
    lease = Lease(
        job="j", attempt=1, fence=1, name="n" * 128, owner="o", project="p", domain="d", cluster="c", spec=request.spec
    )
    assert len(received_job(Handover(2**31 - 1, lease, text)).encode()) < ANSWER_BYTES
