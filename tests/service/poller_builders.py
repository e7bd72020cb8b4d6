"""Clusters that only poll, for tests of services."""

from __future__ import annotations

import json

from switchyard.features.rainbow.service.poller_access import authenticate_poller, poller_register
from switchyard.service.cluster import graphs
from switchyard.service.core.agents.fleet import AgentEntry
from tests.match.known_cases import forms_of
from tests.service.rig import Rig

LEASE_US = 60_000_000
GRAPH = json.dumps(forms_of({"graph": "keebler-3x12"})[0]).encode()


def joined(rig: Rig, name: str = "polls") -> AgentEntry:
    made = poller_register(rig.context, name, graphs.pack_graph(GRAPH), invite=None)
    assert made is not None
    return authenticate_poller(rig.context, name, made.secret)
