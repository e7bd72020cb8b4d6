"""A server whose file lays out a few clusters, and ways to ask what it makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.stage import Fields, Stage, staged
from tests.programs import call

CONFIG = """\
clusters:
  clusterConfigs: [{name: a}, {name: b}, {name: c}, {name: late}, {name: dark, enabled: false}]
  poolNameClusterMap:
    ab: [{id: a, weight: 1}, {id: b, weight: 3}]
    c: [{id: c}]
    late: [{id: late, weight: 5}]
    dark: [{id: dark}]
    bound: [{id: b}]
    ghost: [{id: nobody}]
  labelClusterMap: {bc: [{id: b}, {id: c}], a: [{id: a}], zero: [{id: a, weight: 0}, {id: b}]}
  clusterPoolAssignments: {staging: {pool: bound}}
"""
FIRST, ANY = {"If-None-Match": "*"}, {"If-Match": "*"}
WORK: Fields = {"spec": {"command": ["true"]}}


def write(folder: Path, text: str, name: str = "config.yaml") -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


@contextmanager
def laid_out(folder: Path) -> Iterator[Stage]:
    """Three clusters that are up, one that nobody joined, one that the file does not enable."""
    with (
        staged(folder, extra=["--config", write(folder, CONFIG)]) as made,
        made.agent("a"),
        made.agent("b"),
        made.agent("c"),
    ):
        yield made


def plan(stage: Stage, **fields: Any) -> Fields:
    found: Fields = stage.post("/v1/plan", WORK | fields)
    return found


def steps(plan: Fields) -> dict[str, str]:
    return {verdict["cluster"]: verdict["step"] for verdict in plan["verdicts"]}


def set_pool(stage: Stage, name: str, **weights: float) -> None:
    members = [{"id": cluster, "weight": weight} for cluster, weight in weights.items()]
    seen = stage.call("GET", f"/v1/pools/{name}")
    headers = {"If-Match": seen.headers["etag"]} if seen.status == 200 else FIRST
    answer = stage.call("PUT", f"/v1/pools/{name}", {"members": members}, headers=headers)
    assert answer.status == 200, answer.body


def pool_of(url: str, name: str) -> dict[str, float]:
    return {each["id"]: each["weight"] for each in call("GET", f"{url}/v1/pools/{name}").json["members"]}
