"""Join tokens of groups: platform administrators alone make, list and revoke them."""

from __future__ import annotations

from tests.server.cases import ROOT, ROOT_MAKES, Case, at, send

OWN = "/v1/cluster-groups/own/invites"
GROUP_INVITE_CASES = (
    Case("POST /v1/cluster-groups/{group}/invites", "any", ROOT_MAKES, lambda *_: OWN, send(uses_max=3)),
    Case("GET /v1/cluster-groups/{group}/invites", "any", ROOT, lambda *_: OWN),
    Case(
        "DELETE /v1/cluster-groups/{group}/invites/{invite}",
        "any",
        ROOT,
        at(OWN + "/{}", lambda town: town.group_invite("own")),
    ),
)
