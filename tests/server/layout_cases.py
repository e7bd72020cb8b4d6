"""Who may do what about pools and cluster labels: everyone may read them, the platform's administrator sets them."""

from __future__ import annotations

from collections.abc import Callable

from tests.server.cases import ROOT, USERS, Case, send
from tests.server.town import Town

ANY = {"If-Match": "*"}
FIRST = {"If-None-Match": "*"}
MEMBERS = {"members": [{"id": "own", "weight": 2}, {"id": "foreign"}]}
DEFAULT = "/v1/layout/default-label"
DOMAIN = "/v1/layout/domain-pools/{domain}"
TAGS = "/v1/layout/domain-tags/{domain}"
STAGING_TAGS = "/v1/layout/domain-tags/staging"
STAGING = "/v1/layout/domain-pools/staging"  # no test submits there


def fresh(kind: str) -> Callable[[Town, str], str]:
    return lambda town, _role: f"/v1/{kind}/{town.name('set')}"


def made(kind: str) -> Callable[[Town, str], str]:
    return lambda town, _role: f"/v1/{kind}/{town.cluster_set(kind)}"


def standing(path: str, kind: str, word: str, *, is_there: bool) -> Callable[[Town, str], str]:
    """A name that stands where a request says nothing, or its absence."""

    def make(town: Town, _role: str) -> str:
        town.ask("DELETE", path, token=town.root, headers=ANY)
        if is_there:
            answer = town.ask("PUT", path, {word: town.cluster_set(kind)}, token=town.root, headers=FIRST)
            assert answer.status == 200, answer.body
        return path

    return make


def a_queue(town: Town, _role: str) -> str:
    return f"/v1/queues/{town.queue()}"


def domain_tags(*, is_there: bool) -> Callable[[Town, str], str]:
    def make(town: Town, _role: str) -> str:
        town.ask("DELETE", STAGING_TAGS, token=town.root, headers=ANY)
        if is_there:
            answer = town.ask("PUT", STAGING_TAGS, {"tags": ["default"]}, token=town.root, headers=FIRST)
            assert answer.status == 200, answer.body
        return STAGING_TAGS

    return make


def _of_sets(kind: str) -> list[Case]:
    at = f"/v1/{kind}/{{name}}"
    return [
        Case(f"GET /v1/{kind}", "all", USERS),
        Case(f"GET {at}", "one", USERS, made(kind)),
        Case(f"PUT {at}", "a new one", ROOT, fresh(kind), send(**MEMBERS), FIRST),
        Case(f"PUT {at}", "one that is there", ROOT, made(kind), send(members=[]), ANY),
        Case(f"DELETE {at}", "one", ROOT, made(kind), headers=ANY),
    ]


LAYOUT_CASES = [
    Case("GET /v1/layout", "all", USERS),
    *_of_sets("pools"),
    *_of_sets("cluster-labels"),
    Case(
        f"PUT {DOMAIN}",
        "a pool",
        ROOT,
        standing(STAGING, "pools", "pool", is_there=False),
        lambda town, _role: {"pool": town.cluster_set("pools")},
        FIRST,
    ),
    Case(f"DELETE {DOMAIN}", "a pool", ROOT, standing(STAGING, "pools", "pool", is_there=True), headers=ANY),
    Case("GET /v1/queues", "all", USERS),
    Case("GET /v1/queues/{name}", "one", USERS, a_queue),
    Case("PUT /v1/queues/{name}", "a new one", ROOT, fresh("queues"), send(limits={"running": 3}), FIRST),
    Case("PUT /v1/queues/{name}", "one that is there", ROOT, a_queue, send(priority=1), ANY),
    Case("DELETE /v1/queues/{name}", "one", ROOT, a_queue, headers=ANY),
    Case(f"PUT {TAGS}", "tags", ROOT, domain_tags(is_there=False), send(tags=["default"]), FIRST),
    Case(f"DELETE {TAGS}", "tags", ROOT, domain_tags(is_there=True), headers=ANY),
    Case(
        f"PUT {DEFAULT}",
        "a label",
        ROOT,
        standing(DEFAULT, "cluster-labels", "label", is_there=False),
        lambda town, _role: {"label": town.cluster_set("cluster-labels")},
        FIRST,
    ),
    # The last one: what it leaves behind is that there is none, as most tests expect.
    Case(
        f"DELETE {DEFAULT}", "a label", ROOT, standing(DEFAULT, "cluster-labels", "label", is_there=True), headers=ANY
    ),
]
