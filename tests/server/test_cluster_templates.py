"""The config of cluster resources: where values come from, in both forms that charts use, and every mistake named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.features.kubernetes.server.feature import (
    ClusterResourcesSection,
    templates_of,
)
from switchyard.features.kubernetes.service.resource_templates import ResourceTemplates, VariableSource, platform_values
from switchyard.server.config.config import NamespaceMappingSection

DATA = {
    "directValue": {"value": "1"},
    "envValue": {"valueFrom": {"env": "TEST_FOO"}},
    "filePath": {"valueFrom": {"filePath": "FILE"}},
}


def read(**section: Any) -> ClusterResourcesSection:
    return msgspec.convert(section, ClusterResourcesSection)


def values_of(resources: ClusterResourcesSection, domain: str = "development", **environment: str) -> Any:
    templates = templates_of(resources, NamespaceMappingSection(), folder=Path(), environment=environment)
    return platform_values(templates, domain)


def test_crc_01_values_are_given_or_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("3\n")
    data = {**DATA, "filePath": {"valueFrom": {"filePath": str(tmp_path / "file")}}}
    values, origins, mistakes = values_of(read(templateData=data), TEST_FOO="2")
    assert (values, mistakes) == ({"directValue": "1", "envValue": "2", "filePath": "3"}, {})
    assert set(origins.values()) == {"platform config"}


@pytest.mark.parametrize(
    "custom",
    [
        {"development": {"var1": {"value": "val1"}}, "staging": {"var1": {"value": "other"}}},
        [{"development": [{"var1": {"value": "val1"}}]}, {"staging": [{"var1": {"value": "other"}}]}],
    ],
)
def test_crc_05_a_domain_may_have_values_of_its_own(custom: Any) -> None:
    resources = read(templateData={"var1": {"value": "all"}}, customData=custom)
    assert values_of(resources)[0] == {"var1": "val1"}
    assert values_of(resources)[1] == {"var1": "platform config, domain development"}
    assert values_of(resources, "production")[0] == {"var1": "all"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        # crc-03
        ({"valueFrom": {"env": "UNSET"}}, "a (platform config): the environment variable UNSET is unset or empty"),
        ({"valueFrom": {"filePath": "/nowhere/x"}}, "No such file"),
        ({"value": ""}, "a (platform config): its value is unset or empty"),
    ],
)
def test_what_gives_no_value_is_named(source: Any, said: str) -> None:
    values, _, mistakes = values_of(read(templateData={"a": source}))
    assert values == {}
    assert said in mistakes["a"]


def test_a_domains_value_makes_up_for_the_platforms() -> None:
    resources = read(
        templateData={"a": {"valueFrom": {"env": "UNSET"}}}, customData={"development": {"a": {"value": "1"}}}
    )
    assert values_of(resources)[::2] == ({"a": "1"}, {})


def test_a_file_over_the_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * (2**16 + 1))
    values = platform_values(
        ResourceTemplates(platform={"a": VariableSource(file=str(tmp_path / "large"))}), "development"
    )
    assert "is over 65536 bytes" in values[2]["a"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"templateData": {"namespace": {"value": "x"}}}, "templateData.namespace: namespace is set by the server"),
        ({"customData": {"d": {"project": {"value": "x"}}}}, "customData.d.project: project is set by the server"),
        ({"templateData": {"a b": {"value": "x"}}}, "templateData.a b: not a name"),
        ({"templateData": {"a": {}}}, "templateData.a: give one of value, valueFrom.env, valueFrom.filePath"),
        ({"templateData": {"a": {"value": "x", "valueFrom": {"env": "E"}}}}, "templateData.a: give one of"),
        ({"templateData": {"a": {"valueFrom": {"env": "E", "filePath": "F"}}}}, "templateData.a: give one of"),
        ({"templateData": {"a": "x"}}, "templateData.a: Expected `object`"),
        ({"templateData": {"a": {"valeu": "x"}}}, "templateData.a: Object contains unknown field `valeu`"),
        ({"templateData": "x"}, "templateData: neither a map of names nor a list"),
        ({"templateData": [{"a": {"value": 1}}, {"a": {"value": 2}}]}, "templateData.a: given twice"),
        ({"customData": {"d": 7}}, "customData.d: neither a map"),
        ({"refreshInterval": "soon"}, "soon"),
        ({"templatesPath": "x"}, "templatesPath"),
    ],
)
def test_a_mistake_is_named(section: dict[str, Any], said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        read(**section)
    assert said in str(caught.value)


@pytest.mark.parametrize("template", ["{{ org }}", "UPPER", ""])
def test_a_namespace_template_that_gives_no_namespace_is_refused(template: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"template": template}, NamespaceMappingSection)


def test_a_relative_path_begins_at_the_config_file(tmp_path: Path) -> None:
    templates = templates_of(read(templatePath="t"), NamespaceMappingSection(), folder=tmp_path, environment={})
    assert templates.folder == tmp_path / "t"
    assert templates_of(read(), NamespaceMappingSection(), folder=tmp_path, environment={}).folder is None
