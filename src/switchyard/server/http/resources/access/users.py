"""Users."""

from __future__ import annotations

from switchyard.model.rules.access import User, UserChange, UserRequest
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT
from switchyard.service.access import users


def user_list(call: Call) -> Page[User]:
    return call.page(users.user_list(call.context, call.actor), lambda user: user.name)


def user_create(call: Call) -> User:
    return users.user_create(call.context, call.actor, call.body)


def user_get(call: Call) -> User:
    return users.user_get(call.context, call.actor, call.path["user"])


def user_change(call: Call) -> User:
    return users.user_change(call.context, call.actor, call.path["user"], call.body)


def user_delete(call: Call) -> Deleted:
    users.user_delete(call.context, call.actor, call.path["user"])
    return Deleted(call.path["user"])


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/users", "Users", Page[User], user_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/users", "Make a user", User, user_create, UserRequest, 201),
    Endpoint("GET", "/v1/users/{user}", "One user", User, user_get),
    Endpoint("PATCH", "/v1/users/{user}", "Change a user", User, user_change, UserChange),
    Endpoint("DELETE", "/v1/users/{user}", "Delete a user", Deleted, user_delete),
)
