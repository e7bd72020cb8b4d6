"""Templates of cluster resources: values fill places, and whatever they hold, they never become structure."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from switchyard.features.kubernetes.policy.fill_template import fill_template
from switchyard.policy.namespace_names import namespace_of

QUOTA = """\
# what a project may use
apiVersion: v1
kind: ResourceQuota
metadata:
  name: project-quota
  namespace: {{ namespace }}
spec:
  hard:
    limits.cpu: {{ projectQuotaCpu }}
    limits.memory: "{{ projectQuotaMemory }}"
"""
SYSTEM = {"namespace": "flyteexamples-development", "project": "flyteexamples", "domain": "development"}
HOSTILE = [
    "1\n  evil: true",
    "x: y",
    "- a",
    "{a: b}",
    "[1, 2]",
    "a # b",
    "#",
    "'",
    '"',
    "\\",
    "&a",
    "*a",
    "!!python/object:os.system",
    "|",
    ">",
    "---\nkind: Secret",
    "...",
    "%YAML 1.2",
    "{{ project }}",
    "}} {{",
    "\t",
    " lead",
    "trail ",
    "",
    "~",
    "null",
    "yes",
    "y",
    "On",
    "0123",
    "0x1f",
    "1e3",
    "1_000",
    "1:30",
    ".inf",
    "2024-01-01",
    "<<",
    "=",
    "\x00\x07",
    "\u2028next",
    "\ufeff",
    "5Ti",
    "9" * 30,
]


def filled(template: str, **values: str) -> Any:
    found = fill_template(template, {**SYSTEM, **values}, where="t.yaml")
    assert found.mistakes == ()
    return yaml.safe_load(found.text)


def test_a_quota_is_rendered() -> None:
    found = filled(QUOTA, projectQuotaCpu="1000", projectQuotaMemory="5Ti")
    assert found == {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "project-quota", "namespace": "flyteexamples-development"},
        "spec": {"hard": {"limits.cpu": 1000, "limits.memory": "5Ti"}},
    }


def test_crc_06_what_has_no_variable_keeps_its_form() -> None:
    template = "kind: Namespace\nmetadata:\n  name: {{ namespace }}\n  labels: {a: 'b', c: \"1\"}\n"
    found = fill_template(template, SYSTEM, where="t.yaml")
    assert found.text == template.replace("{{ namespace }}", SYSTEM["namespace"])


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    ("template", "around"),
    [
        ("a: {{ v }}\nb: 1\n", "{}"),
        ("a: pre-{{ v }}-post\nb: 1\n", "pre-{}-post"),
        ('a: "{{ v }}"\nb: 1\n', "{}"),
        ("a: '{{ v }}'\nb: 1\n", "{}"),
        ("a: |-\n  {{ v }}\nb: 1\n", "{}"),
        ("a: >-\n  {{ v }}\nb: 1\n", "{}"),
        ("{a: {{ v }}, b: 1}\n", "{}"),
    ],
)
def test_a_hostile_value_stays_one_text(template: str, around: str, value: str) -> None:
    assert filled(template, v=value) == {"a": around.replace("{}", value), "b": 1}


@given(st.text(max_size=40))
def test_any_value_stays_one_value(value: str) -> None:
    if any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        return
    template = "list:\n- {{ v }}\n- key: x{{ v }}\n  {{ v }}k: |\n    {{ v }}\n    end\n"
    assert filled(template, v=value) == {"list": [as_read(value), {"key": f"x{value}", f"{value}k": f"{value}\nend\n"}]}


def as_read(value: str) -> Any:
    """A place without quotes takes plain numbers, true and false as such."""
    words = {"true": True, "false": False}
    if value in words:
        return words[value]
    sign, digits = value[:1] == "-", value.removeprefix("-")
    whole, _, fraction = digits.partition(".")
    is_plain = whole.isascii() and whole.isdigit() and (whole == "0" or not whole.startswith("0"))
    if is_plain and len(whole) < 15 and ((fraction.isascii() and fraction.isdigit()) or "." not in digits):
        return (-1 if sign else 1) * (float(digits) if "." in digits else int(digits))
    return value


@pytest.mark.parametrize(
    ("text", "read"),
    [("3", 3), ("-7", -7), ("0", 0), ("1.5", 1.5), ("true", True), ("false", False), ("True", "True"), ("01", "01")],
)
def test_a_place_without_quotes_takes_numbers_and_booleans(text: str, read: object) -> None:
    assert filled("a: {{ v }}", v=text) == {"a": read}
    assert filled('a: "{{ v }}"', v=text) == {"a": text}
    assert filled("{{ v }}: a", v=text) == {text: "a"}


def test_spaces_and_repetition_and_several_objects() -> None:
    found = fill_template("a: {{v}}/{{  v  }}\n---\nb: {{ v }}\n", {"v": "x"}, where="t.yaml")
    assert list(yaml.safe_load_all(found.text)) == [{"a": "x/x"}, {"b": "x"}]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        # crc-08: Flyte leaves it in the text.
        ("a: 1\ncpu: {{ projectQuotaCpu }}\n", "t.yaml: line 2: {{ projectQuotaCpu }} has no value; known here: "),
        ("a: {{ Namespace }}\n", "{{ Namespace }} has no value"),  # case matters
        ("a: {{ 1x }}\n", "line 1: what {{ }} holds is not a name"),
        ("a: 1\nb: {{ x\n", "line 2: what {{ }} holds is not a name"),
        ("a: [1\n", "t.yaml: line 2: "),
        ("a: &x 1\nb: *x\n", "aliases are not allowed"),
        ("a: 1\na: 2\n", "t.yaml: line 2: the key 'a' is there twice"),
        ("{{ project }}: 1\n{{ project }}: 2\n", "is there twice"),
        ("a: !{{ project }} x\n", "a variable stands where no value can"),
        ("a:\n" + "".join(f"{' ' * n}- \n" for n in range(70)), "nested"),
        ("[" * 3000, "nested too deeply"),
        ("a: \x00", "t.yaml: "),
    ],
)
def test_a_mistake_names_its_place(template: str, said: str) -> None:
    found = fill_template(template, SYSTEM, where="t.yaml")
    assert found.text == ""
    assert said in found.mistakes[0]


def test_all_mistakes_of_a_file_are_listed() -> None:
    found = fill_template("a: {{ x }}\nb: {{ y }}{{ x }}\n", {}, where="t.yaml")
    assert [mistake.split(" has")[0] for mistake in found.mistakes] == [
        "t.yaml: line 1: {{ x }}",
        "t.yaml: line 2: {{ y }}",
        "t.yaml: line 2: {{ x }}",
    ]


@pytest.mark.parametrize(
    ("template", "project", "domain", "namespace"),
    [
        ("prefix-{{ project }}-{{ domain }}", "flytesnacks", "production", "prefix-flytesnacks-production"),  # ns-01
        ("{{ project }}-{{ domain }}", "flytesnacks", "production", "flytesnacks-production"),
        ("{{ project }}", "flytesnacks", "production", "flytesnacks"),  # ns-03
        ("{{domain}}", "flytesnacks", "production", "production"),
        ("fixed", "flytesnacks", "production", "fixed"),
    ],
)
def test_namespaces(template: str, project: str, domain: str, namespace: str) -> None:
    assert namespace_of(template, project=project, domain=domain) == namespace


@pytest.mark.parametrize(
    ("template", "project", "said"),
    [
        ("{{ project }}-{{ domain }}", "My_Project", "'My_Project-development' is no namespace"),
        ("{{ project }}-{{ domain }}", "p" * 60, "at most 63"),
        ("{{ org }}-x", "p", "'org' is unknown in namespace_mapping.template; known: project, domain"),
        ("{{ project }}\n", "p", "is no namespace"),
        ("", "p", "is no namespace"),
    ],
)
def test_what_is_no_namespace(template: str, project: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        namespace_of(template, project=project, domain="development")
    assert said in str(caught.value)
