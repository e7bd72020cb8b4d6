"""Grants: the roles of users and groups."""

from __future__ import annotations

from switchyard.model.rules.access import Grant, GrantRequest
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT
from switchyard.service.access import users


def grant_list(call: Call) -> Page[Grant]:
    return call.page(users.grant_list(call.context, call.actor), lambda grant: grant.id)


def grant_create(call: Call) -> Grant:
    return users.grant_create(call.context, call.actor, call.body)


def grant_delete(call: Call) -> Deleted:
    users.grant_delete(call.context, call.actor, call.path["grant"])
    return Deleted(call.path["grant"])


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/grants", "Grants", Page[Grant], grant_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/grants", "Grant a role", Grant, grant_create, GrantRequest, 201),
    Endpoint("DELETE", "/v1/grants/{grant}", "Revoke a grant", Deleted, grant_delete),
)
