"""Admission: an unknown scope is refused, and the refusal says what is known."""

from __future__ import annotations

import pytest

from switchyard.errors import UnknownName
from switchyard.policy.admit import Rules, admit
from tests.builders import a_request

RULES = Rules(frozenset({"development", "production"}), frozenset({"default", "web"}))


def test_a_known_scope_is_admitted_into_the_default_queue() -> None:
    request = a_request(project="web", domain="production")
    admitted = admit(request, RULES)
    assert (admitted.request, admitted.queue) == (request, "default")


def test_an_unknown_domain_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="no domain 'staging'") as caught:
        admit(a_request(domain="staging"), RULES)
    assert caught.value.next_step == "Known domains: development, production."


def test_an_unknown_project_does_not_list_those_of_others() -> None:
    with pytest.raises(UnknownName, match="no project 'secret'") as caught:
        admit(a_request(project="secret"), RULES)
    assert "web" not in caught.value.detail + caught.value.next_step
