"""How Flyte chooses a queue, case by case: its answer, or ours where we decided otherwise. One row per case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import BadRequest
from switchyard.model.rules.scope import Scope
from switchyard.server.config.config import read_config
from switchyard.server.config.platform_config import layout_of
from switchyard.service.cluster.layout import store_file_layout
from switchyard.service.rules import attributes
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, running

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "flyte_queues.json").read_text())
# Flyte's domainless default is our built-in queue.
CONFIG = """\
clusters: {labelClusterMap: {green: [{id: alpha}]}}
queues:
  - {name: queue1, attributes: [attr1], native: {alpha: child-1}}
  - {name: queue2, attributes: [attr2]}
  - {name: queue3, attributes: [attr3]}
domains: [development, staging, {id: production, tags: [attr1]}]
"""


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any], sqlite_url: str, tmp_path: Path) -> None:
    config = read_config(CONFIG, where="config")
    with running(sqlite_url, tmp_path, config=config) as rig:
        store_file_layout(rig.context, layout_of(config))
        agent = rig.cluster("alpha", graph=a_graph())
        scope = Scope(domain=case["domain"], project="default")
        if case["answer"] == "refused when written":
            with pytest.raises(BadRequest, match="no queue has the tag 'nosuch'"):
                attributes.put(rig.context, ADMIN, 2, scope, {"tags": case["stored"]})
            return
        if "stored" in case:
            attributes.put(rig.context, ADMIN, 2, scope, {"tags": case["stored"]})
        request = a_request(tags=case.get("asked", []), domain=case["domain"], cluster_label=case.get("label"))
        job = rig.job(rig.submit(request).id)
        (lease,) = agent.lease()
        assert (job.queue, job.cluster_label) == (case["answer"], case.get("label"))
        assert lease.native_queue == case.get("native", "child-1" if job.queue == "queue1" else None)
