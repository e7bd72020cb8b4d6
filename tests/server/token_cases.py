"""Who may do what about token pools: everyone may look, submitters of a project claim, an administrator registers."""

from __future__ import annotations

from collections.abc import Callable

from tests.server.cases import ROOT, USERS, Case, send
from tests.server.town import Town

AT = "/v1/token-pools/{namespace}"
SUBMITS = "401 401 401 403 403 200 200 200 200"


def pool(tail: str = "") -> Callable[[Town, str], str]:
    return lambda town, _role: f"/v1/token-pools/{town.token_pool()}{tail}"


def fresh(town: Town, _role: str) -> str:
    return f"/v1/token-pools/{town.name('pool')}"


TOKEN_CASES = [
    Case("GET /v1/token-pools", "all", USERS),
    Case("GET /v1/token-manager", "the kind", USERS),
    Case(f"GET {AT}", "one", USERS, pool()),
    Case(f"GET {AT}/holders", "those one may see", USERS, pool("/holders")),
    Case(f"PUT {AT}", "a new one", ROOT, fresh, send(quota=5)),
    Case(f"PATCH {AT}", "another quota", ROOT, pool(), send(quota=6)),
    Case(f"DELETE {AT}", "one", ROOT, pool()),
    Case(f"POST {AT}/allocate", "own project", SUBMITS, pool("/allocate"), send(token="t", project="own")),
    Case(
        f"POST {AT}/allocate",
        "foreign project",
        "401 401 401 403 403 403 403 403 200",
        pool("/allocate"),
        send(token="t", project="foreign"),
    ),
    Case(f"POST {AT}/renew", "own project", SUBMITS, pool("/renew"), send(token="t", project="own")),
    Case(f"POST {AT}/release", "own project", SUBMITS, pool("/release"), send(token="t", project="own")),
]
