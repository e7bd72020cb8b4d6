"""Rendered templates as Kubernetes objects: the checks that need no cluster, and what users may see of Secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import yaml

from switchyard.features.kubernetes.model.namespace_objects import OBJECTS_MAX, RenderedObject
from switchyard.features.kubernetes.model.rendering import RenderedFile

OBJECT_BYTES_MAX = 2**20  # Kubernetes takes little more
NAMESPACE_BYTES_MAX = 4 * 2**20  # of all objects of a namespace: they travel in one message
HIDDEN = "hidden"  # in the place of each value of a Secret
_API_VERSION = re.compile(r"([a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?/)?v[0-9][a-z0-9]{0,20}")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9])?")  # RBAC allows colons
_CLUSTERS_OWN = ("generateName", "managedFields", "resourceVersion", "uid")  # of metadata: a template cannot set them
_SECRET_FIELDS = ("data", "stringData")


class ObjectMistake(ValueError):
    """What is wrong with one object."""


def _number_or_text(loader: Any, node: yaml.ScalarNode) -> Any:
    if ":" in node.value:
        return node.value
    is_int = node.tag.endswith(":int")
    return loader.construct_yaml_int(node) if is_int else loader.construct_yaml_float(node)


def _text(loader: Any, node: yaml.ScalarNode) -> Any:
    return loader.construct_scalar(node)


def _object_loader() -> Any:
    """Return a safe loader that reads YAML as kubectl does: a date and a time of day are texts."""
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, ten times as fast
    loader: Any = type("ObjectLoader", (base,), {})
    for tag, construct in (("int", _number_or_text), ("float", _number_or_text), ("timestamp", _text)):
        loader.add_constructor(f"tag:yaml.org,2002:{tag}", construct)
    return loader


_OBJECT_LOADER = _object_loader()


def read_objects(files: Iterable[RenderedFile], *, namespace: str) -> tuple[list[RenderedObject], list[str]]:
    """Return the objects in the order of their files, and all mistakes. With a mistake, none may be applied."""
    objects: list[RenderedObject] = []
    mistakes: list[str] = []
    files_by_identity: dict[tuple[str, ...], str] = {}
    size = 0
    for rendered in files:
        try:
            documents = [document for document in _documents(rendered.text) if document is not None]
            if not documents:
                raise ObjectMistake("it renders to no object; remove the file if nothing is meant")
            for document in documents:
                identity = check_object(document, namespace=namespace)
                if identity in files_by_identity:
                    raise ObjectMistake(f"{identity[1]}/{identity[2]} is in {files_by_identity[identity]}, too")
                files_by_identity[identity] = rendered.file
                size += _size(document)
                objects.append(RenderedObject(rendered.file, document))
        except ObjectMistake as exc:
            mistakes.append(f"{rendered.file}: {exc}")
    if len(objects) > OBJECTS_MAX:
        mistakes.append(f"{len(objects)} objects for one namespace; the most is {OBJECTS_MAX}")
    if size > NAMESPACE_BYTES_MAX:
        mistakes.append(f"the objects of the namespace have {size} bytes; the most is {NAMESPACE_BYTES_MAX}")
    return ([] if mistakes else objects), mistakes


def check_object(document: Any, *, namespace: str) -> tuple[str, str, str]:
    """Return the group, kind and name of an object for this namespace. Raises ObjectMistake."""
    if not isinstance(document, dict):
        raise ObjectMistake("a document is not an object: it needs apiVersion, kind and metadata")
    kind = _word(document, "kind", _KIND)
    if kind.endswith("List"):
        raise ObjectMistake(f"{kind}: write each object as a document of its own, with --- between them")
    api_version = _word(document, "apiVersion", _API_VERSION)
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        raise ObjectMistake(f"{kind}: it has no metadata")
    name = _word(metadata, "name", _NAME, at=f"{kind}: metadata.")
    if fields := [field for field in _CLUSTERS_OWN if field in metadata]:
        raise ObjectMistake(f"{kind}/{name}: metadata.{fields[0]} is the cluster's own")
    elsewhere = metadata.get("namespace", namespace)
    if kind == "Namespace" and api_version == "v1":
        elsewhere = name
    if elsewhere != namespace:
        raise ObjectMistake(f"{kind}/{name}: the namespace is {str(elsewhere)[:80]!r}, not {namespace!r}")
    _refuse_odd_keys(document, f"{kind}/{name}")
    return api_version.rpartition("/")[0], kind, name


def hide_secrets(text: str) -> str:
    """Return rendered YAML with a word in the place of each value of a Secret."""
    if "Secret" not in text:
        return text
    documents = list(yaml.compose_all(text, yaml.SafeLoader))
    if not sum(_hide(document) for document in documents if document is not None):
        return text
    return str(yaml.serialize_all(documents, Dumper=yaml.SafeDumper, width=2**20, allow_unicode=True))


def _documents(text: str) -> list[Any]:
    try:
        return list(yaml.load_all(text, Loader=_OBJECT_LOADER))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as exc:
        first_line = (str(exc).splitlines() or ["not readable"])[0]
        raise ObjectMistake(f"its rendering is not YAML: {first_line}") from exc


def _word(values: dict[str, Any], field: str, pattern: re.Pattern[str], at: str = "") -> str:
    value = values.get(field)
    if value is None:
        raise ObjectMistake(f"{at}{field} is missing")
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ObjectMistake(f"{at}{field} cannot be {str(value)[:80]!r}")
    return value


def _refuse_odd_keys(value: Any, at: str) -> None:
    """JSON has only texts as keys. `on: x` is a boolean key in YAML."""
    if isinstance(value, dict):
        for key, below in value.items():
            if not isinstance(key, str):
                raise ObjectMistake(f"{at}: the key {str(key)[:80]} is not a text; put it in quotes")
            _refuse_odd_keys(below, at)
    elif isinstance(value, list):
        for below in value:
            _refuse_odd_keys(below, at)


def _size(document: dict[str, Any]) -> int:
    try:
        size = len(msgspec.json.encode(document))
    except (TypeError, ValueError, OverflowError) as exc:
        raise ObjectMistake(f"it cannot be written as JSON: {exc}") from exc
    if size > OBJECT_BYTES_MAX:
        raise ObjectMistake(f"an object has {size} bytes; the most is {OBJECT_BYTES_MAX}")
    return size


def _hide(node: yaml.Node) -> int:
    """Hide the values of all Secrets at or below this node. Returns the number of Secrets."""
    if isinstance(node, yaml.SequenceNode):
        return sum(_hide(child) for child in node.value)
    if not isinstance(node, yaml.MappingNode):
        return 0
    fields = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    kind = fields.get("kind")
    if isinstance(kind, yaml.ScalarNode) and kind.value == "Secret":
        for name in _SECRET_FIELDS:
            if name in fields:
                for scalar in _scalars(fields[name]):
                    scalar.value, scalar.tag, scalar.style = HIDDEN, "tag:yaml.org,2002:str", None
        return 1
    return sum(_hide(value) for value in fields.values())


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """All values at or below a node; keys are not values."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _scalars(child)
    elif isinstance(node, yaml.MappingNode):
        for _, child in node.value:
            yield from _scalars(child)
