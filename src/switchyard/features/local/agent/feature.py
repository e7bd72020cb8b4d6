"""What the local backend adds to the agent's doctor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from switchyard.agent.feature import AgentFeature, Finding


class LocalFeature(AgentFeature):
    kind = "local"
    has_nodes = False

    def check_folder(self, directory: Path) -> Sequence[Finding]:
        from switchyard.features.local.agent.supervisor_program import probe_supervisor

        why = probe_supervisor(directory)
        if not why:
            return ()
        advice = "Make room on the disk. The agent writes its supervisor anew before the next job; else restart it."
        return (Finding("supervisor", False, f"no job can be started: {why}", advice),)
