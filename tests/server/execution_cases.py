"""Who may read and create executions. Those that are asked for do not exist: whoever may see the project learns it."""

from __future__ import annotations

from tests.server.cases import ROOT, USERS, Case, send

ADDRESS = "/v1/executions/{project}/{domain}/{execution}"
READS = ("", "/nodes", "/explain")
OWN, FOREIGN = "/v1/executions/own/development/none", "/v1/executions/foreign/development/none"
EXECUTION_CASES = [
    Case("GET /v1/executions", "all one may see", USERS),
    Case(
        "GET /v1/executions",
        "own project",
        "401 401 401 403 200 200 200 200 200",
        lambda *_: "/v1/executions?project=own",
    ),
    Case("GET /v1/executions", "foreign project", ROOT, lambda *_: "/v1/executions?project=foreign"),
    *(
        Case(f"GET {ADDRESS}{read}", "own project", "401 401 401 403 404 404 404 404 404", lambda *_, r=read: OWN + r)
        for read in READS
    ),
    *(
        Case(
            f"GET {ADDRESS}{read}",
            "foreign project",
            "401 401 401 403 403 403 403 403 404",
            lambda *_, r=read: FOREIGN + r,
        )
        for read in READS
    ),
    *(
        Case(f"POST {ADDRESS}/terminate", name, codes, lambda *_, path=path: f"{path}/terminate", send())
        for name, path, codes in (
            ("own project", OWN, "401 401 401 403 404 404 404 404 404"),
            ("foreign project", FOREIGN, "401 401 401 403 403 403 403 403 404"),
        )
    ),
    Case(
        "POST /v1/executions",
        "own project, no such task",
        "401 401 401 403 403 404 404 404 404",
        body=send(project="own", task="none"),
    ),
    Case(
        "POST /v1/executions",
        "foreign project, no such task",
        "401 401 401 403 403 403 403 403 404",
        body=send(project="foreign", task="none"),
    ),
]
