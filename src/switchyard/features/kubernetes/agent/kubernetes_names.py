"""What Kubernetes allows in names, labels and annotations, and how other texts are escaped for it."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

OBJECT_NAME_PATTERN = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"  # a DNS subdomain
NAMESPACE_PATTERN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # a DNS label
LABEL_NAME_PATTERN = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
LABEL_KEY_PATTERN = rf"({OBJECT_NAME_PATTERN}/)?{LABEL_NAME_PATTERN}"
LABEL_VALUE_PATTERN = rf"({LABEL_NAME_PATTERN})?"
LABEL_CHARS_MAX = 63
PREFIX_CHARS_MAX = 253
HASH_CHARS = 8
OWN_PREFIX = "switchyard/"  # of all labels and annotations that the agent sets
OWN_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_KEY = re.compile(LABEL_KEY_PATTERN)
_VALUE = re.compile(LABEL_VALUE_PATTERN)
_NAMESPACE = re.compile(NAMESPACE_PATTERN)
_OBJECT_NAME = re.compile(OBJECT_NAME_PATTERN)
_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9._-]")


def is_namespace(text: str) -> bool:
    return _NAMESPACE.fullmatch(text) is not None


@cache
def own_namespace() -> str:
    """The namespace of the pod that the agent runs in; empty: it runs in none."""
    try:
        return OWN_NAMESPACE_FILE.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def is_reserved_namespace(name: str) -> bool:
    """Whether the namespace belongs to Kubernetes or the agent, so that no project gets it by its mere name."""
    return name.startswith("kube-") or name == "default" or name == own_namespace()


def is_object_name(text: str) -> bool:
    return _OBJECT_NAME.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether labels and annotations may have this key."""
    return _KEY.fullmatch(text) is not None and len(text.rpartition("/")[0]) <= PREFIX_CHARS_MAX


def is_label_value(text: str) -> bool:
    return _VALUE.fullmatch(text) is not None


def is_free_key(key: str) -> bool:
    """Whether the key means nothing to any program of a cluster: it has no domain, or `app.kubernetes.io`, for users.

    Keys with a domain can give a pod rights, e.g. `iam.amazonaws.com/role`, or networks and sidecars.
    """
    domain, slash, _ = key.rpartition("/")
    return not slash or domain == "app.kubernetes.io"


def label_value(text: str) -> str:
    """The text as a label's value. A text that Kubernetes refuses is shortened and gets a hash, so it stays unique.

    `anna@example.org` becomes `anna_example.org-1f0c2d3e`.
    """
    if is_label_value(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARS]
    readable = _NOT_IN_LABEL.sub("_", text)[: LABEL_CHARS_MAX - HASH_CHARS - 1].strip("._-")
    return f"{readable}-{digest}" if readable else digest
