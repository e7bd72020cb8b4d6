"""Jobspecs of Flux: one with everything, and a small one."""

from __future__ import annotations

from typing import Any

# As `flux submit --dry-run -N2 -n4 -c2 -g1 -t 10m --queue=batch --setattr=system.x=1 hostname` prints it.
WHOLE: dict[str, Any] = {
    "resources": [
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
    ],
    "tasks": [{"command": ["hostname"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {
        "system": {
            "duration": 600.0,
            "environment": {"PATH": "/usr/bin:/bin"},
            "cwd": "/home/user",
            "queue": "batch",
            "shell": {"options": {"rlimit": {"cpu": -1}}},
            "x": 1,
        }
    },
    "version": 1,
}
SLOT = {"type": "slot", "count": 10, "label": "s", "with": [{"type": "core", "count": 2}]}
SMALL: dict[str, Any] = {
    "version": 1,
    "resources": [SLOT],
    "tasks": [{"command": ["app"], "slot": "s", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 0}},
}
