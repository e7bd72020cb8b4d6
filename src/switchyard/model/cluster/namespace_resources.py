"""The namespaces of Kubernetes that a cluster serves, and the entry of each. What is in them: `features/kubernetes`."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct

BACKEND = "kubernetes"  # agents of other backends have no namespaces
NAMESPACE_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$"
PATTERNS_MAX = 100  # of the namespaces that a cluster serves
# A name, in which `*` stands for any letters and `?` for one.
NamespacePattern = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9*?-]+(?!\n)$")]
NamespacePatterns = Annotated[list[NamespacePattern], Meta(max_length=PATTERNS_MAX)]


def serves_namespace(patterns: tuple[str, ...], namespace: str) -> bool:
    """Whether a cluster that serves namespaces by these patterns serves this one."""
    return bool(patterns) and _compiled(patterns).match(namespace) is not None


@lru_cache(maxsize=1024)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns))


class NamespaceEntry(Struct, frozen=True, omit_defaults=True):
    """The namespace of a project in a domain. `digest`: of its objects, empty if they were never rendered.

    `mistake`: why the templates cannot be rendered now. The objects are then those of the last rendering.
    `is_refused`: the namespace belongs to another scope, so jobs of this one must not start there.
    """

    namespace: str
    project: str
    domain: str
    digest: str = ""
    mistake: str = ""
    is_refused: bool = False
