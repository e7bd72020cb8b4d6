"""What Kubernetes takes as names and labels, and how other texts are escaped."""

from __future__ import annotations

import pytest

from switchyard.features.kubernetes.agent.kubernetes_names import (
    is_free_key,
    is_label_key,
    is_label_value,
    is_namespace,
    is_object_name,
    label_value,
)


@pytest.mark.parametrize("text", ["", "a", "A-b_c.9", "x" * 63])
def test_a_value_that_kubernetes_takes_stays(text: str) -> None:
    assert label_value(text) == text


@pytest.mark.parametrize(
    "text", ["anna@example.org", "-a", "a-", "x" * 64, "größe", "a b", "…", "\n", "a\x00b", "\ud800", "a/b", "." * 300]
)
def test_other_values_are_escaped_and_stay_apart(text: str) -> None:
    value = label_value(text)
    assert is_label_value(value)
    assert value
    assert label_value(text + "!") != value


def test_an_escaped_value_can_be_read() -> None:
    assert label_value("anna@example.org").startswith("anna_example.org-")


@pytest.mark.parametrize("key", ["app", "example.org/app", "a" * 63, f"{'a' * 60}.{'b' * 60}/c"])
def test_keys(key: str) -> None:
    assert is_label_key(key)


@pytest.mark.parametrize(
    "key", ["", "a/b/c", "/a", "a/", "-a", "a" * 64, "Example.org/a", f"{'a' * 254}/b", "a b", "a\n", "_a"]
)
def test_keys_that_kubernetes_refuses(key: str) -> None:
    assert not is_label_key(key)


@pytest.mark.parametrize(
    ("key", "is_free"),
    [
        ("app", True),
        ("app.kubernetes.io/name", True),
        ("x.app.kubernetes.io/name", False),
        ("kubernetes.io/x", False),
        ("kueue.x-k8s.io/queue-name", False),
        ("iam.amazonaws.com/role", False),
        ("vault.hashicorp.com/agent-inject", False),
        ("k8s.v1.cni.cncf.io/networks", False),
        ("sidecar.istio.io/inject", False),
    ],
)
def test_keys_that_mean_nothing_to_a_cluster(key: str, is_free: bool) -> None:
    assert is_free_key(key) is is_free


def test_names() -> None:
    assert is_namespace("a" * 63)
    assert not is_namespace("a" * 64)
    assert not is_namespace("a.b")
    assert is_object_name("a" * 253)
    assert not is_object_name("a" * 254)
    assert not is_object_name("A")
