"""Bodies: they have to be there, unless the document says otherwise, and they are JSON."""

from __future__ import annotations

import msgspec
import pytest

from switchyard.model.cluster.poll import UNBEGUN_MAX, Leave, UnbegunAttempt
from switchyard.server.http.bodies.body_bounds import LEAVE_BODY
from switchyard.server.http.bodies.body_decoding import refuse_many_values
from switchyard.server.http.endpoint import BodyForm, Caller
from switchyard.server.http.endpoints import ENDPOINTS
from tests.server.cases import JOB, refused
from tests.server.town import Town

pytestmark = pytest.mark.xdist_group("bodies")
TAKES_A_BODY = [
    (endpoint.method, endpoint.path)
    for endpoint in ENDPOINTS
    if endpoint.body is not None and endpoint.caller is Caller.USER and endpoint.body_form is BodyForm.JSON
]


def at(town: Town, path: str) -> str:
    return path.format(
        job="0" * 26,
        cluster="own",
        project="own",
        agent="0" * 26,
        user="the-view",
        **dict.fromkeys(("name", "domain", "namespace", "execution", "group", "invite"), "own"),
        kind="execution-queue-attribute",
    )


def test_a_body_that_is_required_may_not_be_left_out(town: Town) -> None:
    before = len(town.must("GET", "/v1/tokens?limit=500")["items"])
    for method, path in TAKES_A_BODY:
        for body in (None, b""):
            answer = town.ask(method, at(town, path), body, token=town.root, headers={"If-None-Match": "*"})
            problem = refused(answer, 400)
            assert (problem["code"], problem["detail"]) == ("malformed", "The body is missing."), (method, path)
    assert len(town.must("GET", "/v1/tokens?limit=500")["items"]) == before


def test_a_body_that_is_optional_may_be_left_out(town: Town) -> None:
    job = town.job("own", hold=True)
    assert town.must("POST", f"/v1/jobs/{job}/cancel")["state"] == "CANCELLED"
    assert town.must("POST", f"/v1/jobs/{job}/retry")["id"] != job


def test_a_retry_with_the_same_key_makes_one_job(town: Town) -> None:
    jobs = [town.job("own", hold=True) for _ in range(2)]
    for job in jobs:
        town.must("POST", f"/v1/jobs/{job}/cancel")
    first, second, other = (
        town.ask("POST", f"/v1/jobs/{jobs[0]}/retry", token=town.root, headers={"Idempotency-Key": key}).json["id"]
        for key in ("a", "a", "b")
    )
    assert first == second != other
    answer = town.ask("POST", f"/v1/jobs/{jobs[1]}/retry", token=town.root, headers={"Idempotency-Key": "a"})
    assert refused(answer, 409)["code"] == "key-reused"


@pytest.mark.parametrize("media", ["text/plain", "multipart/form-data", "application/yaml", "json"])
def test_a_body_that_is_declared_as_something_else_is_refused(town: Town, media: str) -> None:
    before = town.jobs()
    for path, body in (("/v1/jobs", JOB), ("/v1/jobs/bulk", {"jobs": [JOB]}), ("/v1/plan", JOB), ("/v1/tokens", {})):
        answer = town.ask("POST", path, body, token=town.root, headers={"Content-Type": media})
        assert refused(answer, 415)["code"] == "wrong-media"
    assert town.jobs() == before


@pytest.mark.parametrize("media", ["application/json", "Application/JSON; charset=utf-8", ""])
def test_json_is_taken_however_it_is_declared(town: Town, media: str) -> None:
    assert town.ask("POST", "/v1/plan", JOB, token=town.root, headers={"Content-Type": media}).status == 200


def test_a_whole_number_may_be_written_as_a_float(town: Town) -> None:
    """To a schema 3.0 is an integer."""
    body = b'{"spec":{"command":["true"],"resources":{"tasks":2.0,"gpus":0e0}},"project":"own","priority":3.0}'
    job = town.must("POST", "/v1/jobs", body)["id"]
    assert town.must("GET", f"/v1/jobs/{job}")["priority"] == 3
    refused(town.ask("POST", "/v1/jobs", body.replace(b"3.0", b"3.5"), token=town.root), 400)


def test_an_etag_is_sent_where_the_answer_has_one() -> None:
    for endpoint in ENDPOINTS:
        assert endpoint.has_etag == ("etag" in getattr(endpoint.answer, "__struct_fields__", ())), endpoint.path


def test_a_leave_with_the_most_attempts_is_within_its_bound() -> None:
    unbegun = [UnbegunAttempt("0" * 26, 2**40)] * UNBEGUN_MAX
    body = msgspec.json.encode(Leave(incarnation="i" * 64, is_over=True, reason="r" * 4096, unbegun=unbegun))
    assert len(body) < LEAVE_BODY.bytes_max
    refuse_many_values(body, LEAVE_BODY.values_max)


def test_each_endpoint_is_served_in_one_way() -> None:
    assert all((endpoint.handler is None) != (endpoint.serve is None) for endpoint in ENDPOINTS)
