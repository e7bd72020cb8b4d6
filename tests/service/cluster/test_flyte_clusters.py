"""How Flyte chooses a cluster, case by case: its answer, or ours where we decided otherwise. One row per case."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from switchyard.errors import Malformed, UnknownName
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.scope import Scope
from switchyard.route.select.weighted_draw import draw
from switchyard.server.config.config import Config, read_config
from switchyard.server.config.platform_config import layout_of
from switchyard.service.cluster.layout import store_file_layout
from switchyard.service.rules import attributes
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "flyte_clusters.json").read_text())
HERE = Scope(domain="development", project="default")


def config_of(case: dict[str, Any]) -> Config:
    clusters: dict[str, Any] = {
        "clusterConfigs": [{"name": name, "enabled": is_on} for name, is_on in case["clusters"].items()],
        "labelClusterMap": {
            label: [{"id": name, "weight": weight} for name, weight in members.items()]
            for label, members in case["labels"].items()
        },
    }
    if case.get("default"):
        clusters["defaultExecutionLabel"] = case["default"]
    return read_config(yaml.safe_dump({"clusters": clusters}), where="config")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    if case["answer"] == "drawn":
        _drawn(case)
    elif case["answer"] == "malformed":
        with pytest.raises(msgspec.ValidationError, match="spec"):
            msgspec.convert({}, JobRequest)
    elif case["answer"] == "mistake":
        with pytest.raises(Malformed, match="weight"):
            config_of(case)
    else:
        _submitted(case, Rig(f"sqlite:///{tmp_path / 'yard.db'}", tmp_path, config=config_of(case)))


def _submitted(case: dict[str, Any], rig: Rig) -> None:
    try:
        store_file_layout(rig.context, layout_of(config_of(case)))
        for name in case["clusters"]:
            rig.cluster(name)
        if case.get("stored"):
            attributes.put(rig.context, ADMIN, "execution-cluster-label", HERE, {"value": case["stored"]})
        _answered(case, lambda: rig.submits.plan(ADMIN, a_request(**case["ask"])))
    finally:
        rig.close()


def _answered(case: dict[str, Any], plan: Callable[[], Any]) -> None:
    answer = case["answer"]
    if answer == "unknown":
        with pytest.raises(UnknownName) as caught:
            plan()
        assert caught.value.next_step.endswith(f": {case['known']}.")
    elif answer == "hold":
        assert plan().outcome == "hold"
    else:
        won = Counter(plan().chosen for _ in range(200))
        assert set(won) == set(answer)
        if case.get("even"):
            assert min(won.values()) > 60


def _drawn(case: dict[str, Any]) -> None:
    """Whatever Flyte drew: ours is in the list, has a weight unless none has, and is the same each time."""
    for weights in case["lists"].values():
        names = sorted(weights)
        drawn = {draw(case["seed"], names, [weights[name] for name in names]) for _ in range(3)}
        assert len(drawn) == 1
        assert weights[names[drawn.pop()]] or not any(weights.values())
