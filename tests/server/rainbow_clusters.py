"""Clusters of Rainbow that are registered, and jobs for them."""

from __future__ import annotations

from typing import Any

from tests.match.known_cases import forms_of
from tests.programs import Server, call
from tests.server.rainbow_door import JOB, SECRET, Door

GRAPH, SUBSYSTEMS = forms_of({"graph": "keebler-3x12", "subsystems": {"io": "io-shm-all"}})


def registered(door: Door, name: str, **more: Any) -> dict[str, str]:
    said = door("Register", name=name, secret=SECRET, nodes=GRAPH, **more)
    assert said.status == "REGISTER_SUCCESS"
    return {"cluster": name, "secret": said.secret, "token": said.token}


def own(cluster: dict[str, str]) -> dict[str, str]:
    return {"cluster": cluster["cluster"], "secret": cluster["secret"]}


def submitted(door: Door, cluster: dict[str, str], **more: Any) -> Any:
    clusters = [{"name": cluster["cluster"], "token": cluster["token"]}]
    return door("SubmitJob", **{"name": "job", "jobspec": JOB, "clusters": clusters, **more})


def newest(server: Server, cluster: str) -> Any:
    return call("GET", f"{server.url}/v1/jobs?cluster={cluster}").json["items"][0]
