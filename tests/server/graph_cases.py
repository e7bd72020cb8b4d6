"""The rows of the permissions about what clusters have."""

from __future__ import annotations

from tests.server.cases import (
    HIDDEN,
    IO,
    SHORT,
    SPEC,
    USERS,
    Case,
    at,
    described_cluster,
    send,
)

GRAPH_CASES = [
    # An agent speaks of its own cluster alone; here it is `own`, and the fresh ones are not.
    Case(
        "PUT /v1/clusters/{cluster}/graph",
        "own",
        "401 401 200 404 403 403 200 200 200",
        lambda *_: "/v1/clusters/own/graph",
        send(**SHORT),
    ),
    Case("PUT /v1/clusters/{cluster}/graph", "foreign", HIDDEN, lambda *_: "/v1/clusters/foreign/graph", send(**SHORT)),
    Case(
        "GET /v1/clusters/{cluster}/graph",
        "own",
        "401 401 200 404 200 200 200 200 200",
        lambda *_: "/v1/clusters/own/graph",
    ),
    Case("GET /v1/clusters/{cluster}/graph", "foreign", HIDDEN, lambda *_: "/v1/clusters/foreign/graph"),
    Case(
        "DELETE /v1/clusters/{cluster}/graph",
        "own, to which a subsystem is attached",
        "401 401 403 404 403 403 409 409 409",
        at("/v1/clusters/{}/graph", described_cluster("own")),
    ),
    Case(
        "DELETE /v1/clusters/{cluster}/graph",
        "foreign",
        "401 401 403 404 404 404 404 404 409",
        at("/v1/clusters/{}/graph", described_cluster("foreign")),
    ),
    Case(
        "GET /v1/clusters/{cluster}/subsystems",
        "own",
        "401 401 200 404 200 200 200 200 200",
        lambda *_: "/v1/clusters/own/subsystems",
    ),
    Case("GET /v1/clusters/{cluster}/subsystems", "foreign", HIDDEN, lambda *_: "/v1/clusters/foreign/subsystems"),
    Case(
        "PUT /v1/clusters/{cluster}/subsystems/{subsystem}",
        "own",
        "401 401 403 404 403 403 200 200 200",
        at("/v1/clusters/{}/subsystems/net", described_cluster("own")),
        send(**IO),
    ),
    Case(
        "PUT /v1/clusters/{cluster}/subsystems/{subsystem}",
        "foreign",
        HIDDEN,
        at("/v1/clusters/{}/subsystems/net", described_cluster("foreign")),
        send(**IO),
    ),
    Case(
        "GET /v1/clusters/{cluster}/subsystems/{subsystem}",
        "own",
        "401 401 403 404 200 200 200 200 200",
        at("/v1/clusters/{}/subsystems/io", described_cluster("own")),
    ),
    Case(
        "GET /v1/clusters/{cluster}/subsystems/{subsystem}",
        "foreign",
        HIDDEN,
        at("/v1/clusters/{}/subsystems/io", described_cluster("foreign")),
    ),
    Case(
        "DELETE /v1/clusters/{cluster}/subsystems/{subsystem}",
        "own",
        "401 401 403 404 403 403 200 200 200",
        at("/v1/clusters/{}/subsystems/io", described_cluster("own")),
    ),
    Case(
        "DELETE /v1/clusters/{cluster}/subsystems/{subsystem}",
        "foreign",
        HIDDEN,
        at("/v1/clusters/{}/subsystems/io", described_cluster("foreign")),
    ),
    Case("POST /v1/clusters/fit", "those one may see", USERS, body=send(job={"spec": SPEC})),
]
