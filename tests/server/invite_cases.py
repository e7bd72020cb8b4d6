"""Join tokens: administrators of a cluster make them for it, platform administrators alone for groups."""

from __future__ import annotations

from tests.server.cases import ADMINS, ROOT, ROOT_MAKES, UNSEEN, Case, at, foreign, own, send

OWN = "/v1/cluster-groups/own/invites"
INVITE_CASES = (
    Case(
        "POST /v1/clusters/{cluster}/invites",
        "own",
        "401 401 401 403 403 403 403 201 201",
        lambda *_: "/v1/clusters/own/invites",
        send(),
    ),
    Case(
        "POST /v1/clusters/{cluster}/invites", "foreign", ROOT_MAKES, lambda *_: "/v1/clusters/foreign/invites", send()
    ),
    Case(
        "POST /v1/clusters/{cluster}/invites",
        "new",
        ROOT_MAKES,
        lambda town, _: f"/v1/clusters/{town.name('made')}/invites",
        send(),
    ),
    Case("GET /v1/clusters/{cluster}/invites", "own", ADMINS, lambda *_: "/v1/clusters/own/invites"),
    Case("GET /v1/clusters/{cluster}/invites", "foreign", UNSEEN, lambda *_: "/v1/clusters/foreign/invites"),
    Case("DELETE /v1/invites/{invite}", "own", ADMINS, at("/v1/invites/{}", own("invite"))),
    Case("DELETE /v1/invites/{invite}", "foreign", UNSEEN, at("/v1/invites/{}", foreign("invite"))),
    Case(
        "PUT /v1/invites/{invite}/job",
        "own, which is for no job",
        "401 401 401 404 403 403 403 409 409",
        at("/v1/invites/{}/job", own("invite")),
        lambda town, _: {"job": town.job("own")},
    ),
    Case(
        "PUT /v1/invites/{invite}/job",
        "foreign, to a job of the own project",
        "401 401 401 404 403 403 404 404 409",
        at("/v1/invites/{}/job", foreign("invite")),
        lambda town, _: {"job": town.job("own")},
    ),
    Case("POST /v1/cluster-groups/{group}/invites", "any", ROOT_MAKES, lambda *_: OWN, send(uses_max=3)),
    Case("GET /v1/cluster-groups/{group}/invites", "any", ROOT, lambda *_: OWN),
    Case(
        "DELETE /v1/cluster-groups/{group}/invites/{invite}",
        "any",
        ROOT,
        at(OWN + "/{}", lambda town: town.group_invite("own")),
    ),
)
