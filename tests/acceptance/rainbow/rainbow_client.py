"""What somebody does who has installed Rainbow's Python client and knows nothing of us. Run as a program.

    rainbow_client.py STORY CONFIG     the config is JSON; what came of it goes to stdout as JSON

It stands alone: Rainbow's messages and ours have the same names.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import grpc
import jobspec.core as js
from rainbow.client import RainbowClient
from rainbow.config import RainbowConfig, new_rainbow_config


def client(config: dict[str, Any]) -> RainbowClient:
    return RainbowClient(config["host"], config_file=config["file"])


def register(config: dict[str, Any]) -> Any:
    """Register a cluster, keep its credentials in the client's own file, as its documentation says."""
    path = Path(config["file"])
    cfg = new_rainbow_config(config["host"], config["cluster"], config["secret"])
    cfg.save_yaml(str(path))
    said = client(config).register(config["cluster"], secret=config["secret"], cluster_nodes=config["nodes"])
    if said.status == 1:
        cfg = RainbowConfig(str(path))
        cfg.load()
        cfg._cfg["cluster"] = {"name": config["cluster"], "secret": said.secret}
        cfg.add_cluster(config["cluster"], said.token)
        cfg.save_yaml(str(path))
    return {"status": said.status, "has_secret": bool(said.secret), "has_token": bool(said.token)}


def subsystem(config: dict[str, Any]) -> Any:
    own = RainbowConfig(config["file"])._cfg["cluster"]
    said = client(config).register_subsystem(own["name"], config["subsystem"], own["secret"], config["nodes"])
    return {"status": said.status}


def state(config: dict[str, Any]) -> Any:
    """As a dict, and as a file: that one it sends as JSON within JSON."""
    own = RainbowConfig(config["file"])._cfg["cluster"]
    given = config["state"] if isinstance(config["state"], dict) else str(Path(config["state"]))
    return {"status": client(config).update_state(own["name"], given, own["secret"]).status}


def submit(config: dict[str, Any]) -> Any:
    words = {key: config[key] for key in ("nodes", "tasks", "select_algo", "satisfy_only") if key in config}
    return _told(client(config).submit_job(config["command"], **words))


def submit_jobspec(config: dict[str, Any]) -> Any:
    words = {key: config[key] for key in ("name", "select_algo", "select_options", "satisfy_only") if key in config}
    return _told(client(config).submit_jobspec(js.Jobspec(config["jobspec"]), **words))


def receive(config: dict[str, Any]) -> Any:
    return client(config).receive_jobs(config.get("max_jobs"))


def _told(said: Any) -> Any:
    return {
        "cluster": getattr(said, "cluster", ""),
        "clusters": sorted(said.clusters),
        "status": said.status,
        "matches": said.total_matches,
        "asked": said.total_clusters,
    }


STORIES = {each.__name__: each for each in (register, subsystem, state, submit, submit_jobspec, receive)}


def main() -> None:
    story, config = sys.argv[1], json.loads(sys.argv[2])
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found = STORIES[story](config)
        except grpc.RpcError as exc:
            found = {"code": exc.code().name, "words": exc.details()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
