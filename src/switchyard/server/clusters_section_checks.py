"""Mistakes between the parts of the config's `clusters` section: given twice, or named and never given.

It reads the section as it was written, not as a struct, so that these are found beside mistakes of shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

CLUSTER_SET_KEYS = ("poolNameClusterMap", "labelClusterMap")


def duplicate_clusters(clusters: Any) -> list[str]:
    """Clusters that are given twice, as such or within one pool or label."""
    found = duplicate_names("clusters.clusterConfigs", _names(_part(clusters, "clusterConfigs"), "name"))
    for where, members in _sets(clusters):
        found += duplicate_names(where, members)
    return found


def unlisted_members(clusters: Any) -> list[str]:
    """Members of pools and labels that are not in clusterConfigs. They may be registered, which only the store knows:
    by itself this keeps no server from starting."""
    known = set(_names(_part(clusters, "clusterConfigs"), "name"))
    return [
        f"{where}: {name!r} is not in clusterConfigs; it must be, or be registered"
        for where, members in _sets(clusters)
        for name in dict.fromkeys(members)
        if name not in known
    ]


def duplicate_names(where: str, names: Iterable[str]) -> list[str]:
    return [f"{where}: {name!r} is given twice" for name, count in Counter(names).items() if count > 1]


def _sets(clusters: Any) -> Iterator[tuple[str, list[str]]]:
    for section in CLUSTER_SET_KEYS:
        sets = _part(clusters, section)
        for name, members in sets.items() if isinstance(sets, dict) else ():
            yield f"clusters.{section}.{name}", _names(members, "id")


def _part(clusters: Any, name: str) -> Any:
    return clusters.get(name) if isinstance(clusters, dict) else None


def _names(items: Any, key: str) -> list[str]:
    if not isinstance(items, list):
        return []
    return [item[key] for item in items if isinstance(item, dict) and isinstance(item.get(key), str)]
