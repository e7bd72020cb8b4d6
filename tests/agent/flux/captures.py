"""Answers of a real Flux 0.88 of three nodes with 8 cores and 2 GPUs each, as its commands printed them."""

from __future__ import annotations

from typing import Any

# `flux resource R`
R: dict[str, Any] = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-2", "children": {"core": "0-7", "gpu": "0-1"}}],
        "starttime": 0.0,
        "expiration": 0.0,
        "nodelist": ["f1n[0-2]"],
    },
}
# `flux job info ƒ9x6XXwm R`: two slots of two cores on one node
R_OF_JOB: dict[str, Any] = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "2", "children": {"core": "4-7"}}],
        "nodelist": ["f1n2"],
        "starttime": 1794706406,
        "expiration": 9223372036,
    },
}
# `flux job eventlog ƒ9x6XXwm`: its command ended with exit code 3
EVENTLOG = """\
1794706405.982614 submit userid=0 urgency=16 flags=0 version=1
1794706405.994776 validate
1794706406.005928 depend
1794706406.005976 priority priority=16
1794706406.009729 alloc annotations={"sched":{"selection_type":"immediate"}}
1794706406.017506 start
1794706406.084177 finish status=768
1794706406.091183 release ranks="all" final=true
1794706406.091246 free
1794706406.091266 clean
"""
# `flux jobs -a --json`: ids as numbers and in F58
JOB_IDS = {
    340711702528: "ƒ9x6XXwm",
    344872452096: "ƒA4SCTqH",
    348395667456: "ƒA9oXs1h",
    351700779008: "ƒAEqbRXd",
}
# `flux jobs -a --json ƒA4SCTqH` after `flux cancel`
CANCELLED_WAIT_STATUS = 36608
# `flux submit --dry-run -N2 -n4 -c2 -g1 -t 10m --queue=batch hostname`, without its environment and limits
DRY_RUN_RESOURCES = [
    {
        "type": "node",
        "count": 2,
        "with": [
            {
                "type": "slot",
                "count": 2,
                "with": [{"type": "core", "count": 2}, {"type": "gpu", "count": 1}],
                "label": "task",
            }
        ],
    }
]
DRY_RUN_TASKS = [{"command": ["hostname"], "slot": "task", "count": {"per_slot": 1}}]
