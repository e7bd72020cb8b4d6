"""Rendered templates as objects: everything that needs no cluster to be wrong, and what users see of Secrets."""

from __future__ import annotations

import pytest
import yaml

from switchyard.features.kubernetes.model.rendering import RenderedFile
from switchyard.features.kubernetes.policy.rendered_objects import OBJECT_BYTES_MAX, hide_secrets, read_objects

QUOTA = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: quota}\nspec: {hard: {cpu: '1000'}}\n"
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


def read(*texts: str) -> tuple[list[str], list[str]]:
    """Kinds and names of the objects, and the mistakes."""
    files = [RenderedFile(f"{number}.yaml", text) for number, text in enumerate(texts)]
    objects, mistakes = read_objects(files, namespace="vision-development")
    return [f"{each.object['kind']}/{each.object['metadata']['name']}" for each in objects], mistakes


def test_several_documents_are_several_objects_in_their_order() -> None:
    assert read(QUOTA + "---\n" + CONFIG + "---\n") == (["ResourceQuota/quota", "ConfigMap/a"], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\n", "0.yaml: its rendering is not YAML"),
        ("", "0.yaml: it renders to no object"),
        ("# nothing\n---\nnull\n", "0.yaml: it renders to no object"),
        ("- a\n", "a document is not an object"),
        ("plain\n", "a document is not an object"),
        ("kind: ConfigMap\nmetadata: {name: a}\n", "apiVersion is missing"),
        ("apiVersion: v1\nmetadata: {name: a}\n", "kind is missing"),
        ("apiVersion: v1\nkind: configmap\nmetadata: {name: a}\n", "kind cannot be 'configmap'"),
        ("apiVersion: ../v1\nkind: ConfigMap\nmetadata: {name: a}\n", "apiVersion cannot be '../v1'"),
        ("apiVersion: v1\nkind: ConfigMap\n", "ConfigMap: it has no metadata"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a-}\n", "metadata.name is missing"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a/../b}\n", "metadata.name cannot be 'a/../b'"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 7}\n", "metadata.name cannot be '7'"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, uid: x}\n", "metadata.uid is the cluster's own"),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: kube-system}\n",
            "the namespace is 'kube-system', not 'vision-development'",
        ),
        ("apiVersion: v1\nkind: Namespace\nmetadata: {name: kube-system}\n", "the namespace is 'kube-system'"),
        ("apiVersion: v1\nkind: List\nitems: []\n", "List: write each object as a document of its own"),
        (CONFIG + "data: {on: x}\n", "ConfigMap/a: the key True is not a text"),
        (CONFIG + "---\n" + CONFIG, "ConfigMap/a is in 0.yaml, too"),
        (CONFIG + f"data: {{x: {'y' * OBJECT_BYTES_MAX}}}\n", "the most is 1048576"),
        (CONFIG + "data: !!python/name:os.system x\n", "its rendering is not YAML"),
    ],
)
def test_a_mistake_names_its_file_and_nothing_is_applied(text: str, said: str) -> None:
    objects, mistakes = read(text, QUOTA)
    assert objects == []
    assert len(mistakes) == 1
    assert said in mistakes[0]


def test_the_same_object_in_two_templates_is_a_mistake() -> None:
    assert read(QUOTA, CONFIG, QUOTA)[1] == ["2.yaml: ResourceQuota/quota is in 0.yaml, too"]


def test_too_many_objects() -> None:
    many = "---\n".join(CONFIG.replace("name: a", f"name: a{number}") for number in range(201))
    assert read(many)[1] == ["201 objects for one namespace; the most is 200"]


def test_values_are_read_as_kubectl_reads_them() -> None:
    text = CONFIG + "data: {day: 2026-01-31, time: 12:30:45, mode: 0644, yes: 'yes', count: 3, share: 0.5}\n"
    objects, mistakes = read_objects([RenderedFile("a", text.replace("yes: 'yes'", "y: 'yes'"))], namespace="n")
    assert mistakes == []
    assert objects[0].object["data"] == {
        "day": "2026-01-31",
        "time": "12:30:45",
        "mode": 420,
        "y": "yes",
        "count": 3,
        "share": 0.5,
    }


def test_values_of_a_secret_are_hidden_and_the_rest_is_not() -> None:
    text = (
        CONFIG + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\ntype: Opaque\n"
        'stringData: {password: "hunter2", more: [a, {b: c}]}\ndata:\n  key: aGk=\n'
    )
    shown = hide_secrets(text)
    assert "hunter2" not in shown
    assert "aGk=" not in shown
    config, secret = yaml.safe_load_all(shown)
    assert config == yaml.safe_load(CONFIG)
    assert secret["metadata"] == {"name": "s"}
    assert secret["data"] == {"key": "hidden"}
    assert secret["stringData"]["password"] == "hidden"


@pytest.mark.parametrize("text", [CONFIG, QUOTA, "kind: SecretStore\ndata: {a: b}\n", "- Secret\n"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert hide_secrets(text) == text


def test_a_secret_inside_of_a_list_is_hidden_too() -> None:
    assert "hunter2" not in hide_secrets("kind: List\nitems:\n- kind: Secret\n  stringData: {a: hunter2}\n")
