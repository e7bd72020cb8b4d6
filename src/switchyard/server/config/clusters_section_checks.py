"""Mistakes between the parts of the config's `clusters` section: names given twice, or used and never given.

It reads the section as written, not as a struct, so that these mistakes are listed together with mistakes of shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

CLUSTER_SET_KEYS = ("poolNameClusterMap", "labelClusterMap")


def duplicate_clusters(clusters: Any) -> list[str]:
    """Clusters that are given twice, in the list or within one pool or label."""
    mistakes = duplicate_names("clusters.clusterConfigs", _names(_part(clusters, "clusterConfigs"), "name"))
    for where, members in _sets(clusters):
        mistakes += duplicate_names(where, members)
    return mistakes


def unlisted_members(clusters: Any) -> list[str]:
    """Members of pools and labels that are not in clusterConfigs.

    They may be registered in the database, so these mistakes alone do not keep a server from starting.
    """
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
