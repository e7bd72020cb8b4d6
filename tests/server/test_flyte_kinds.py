"""Our values and Flyte's messages, both ways: nothing is lost, and what we cannot hold is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format

from switchyard.errors import Malformed
from switchyard.features.flyte.server.attributes import (
    KINDS,
    MatchableResource,
    MatchingAttributes,
    from_matching_attributes,
    to_matching_attributes,
    type_name,
)
from switchyard.policy.kinds import BUILTIN_KINDS

KIND = {kind.number: kind for kind in BUILTIN_KINDS}
# Each message with every field that it has, and our value of it.
FULL: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (
        0,
        {
            "task_resource_attributes": {
                "defaults": {"cpu": "500m", "gpu": "1", "memory": "1Gi", "storage": "1Gi", "ephemeral_storage": "2Gi"},
                "limits": {"cpu": "2", "gpu": "4", "memory": "8Gi", "storage": "9Gi", "ephemeral_storage": "20Gi"},
            }
        },
        {
            "defaults": {"cpu": "500m", "gpu": "1", "memory": "1Gi", "storage": "1Gi", "ephemeral_storage": "2Gi"},
            "limits": {"cpu": "2", "gpu": "4", "memory": "8Gi", "storage": "9Gi", "ephemeral_storage": "20Gi"},
        },
    ),
    (
        1,
        {"cluster_resource_attributes": {"attributes": {"projectQuotaCpu": "1000", "projectQuotaMemory": "5Ti"}}},
        {"attributes": {"projectQuotaCpu": "1000", "projectQuotaMemory": "5Ti"}},
    ),
    (2, {"execution_queue_attributes": {"tags": ["b", "a"]}}, {"tags": ["b", "a"]}),
    (3, {"execution_cluster_label": {"value": "mycluster"}}, {"value": "mycluster"}),
    (4, {"quality_of_service": {"tier": "HIGH"}}, {"tier": "HIGH"}),
    (4, {"quality_of_service": {"spec": {"queueing_budget": "600s"}}}, {"queueing_budget": "600s"}),
    (
        5,
        {
            "plugin_overrides": {
                "overrides": [
                    {"task_type": "python", "plugin_id": ["b", "a"], "missing_plugin_behavior": "USE_DEFAULT"},
                    {"task_type": "hive", "plugin_id": ["c"]},
                ]
            }
        },
        {
            "overrides": [
                {"task_type": "python", "plugin_id": ["b", "a"], "missing_plugin_behavior": "USE_DEFAULT"},
                {"task_type": "hive", "plugin_id": ["c"]},
            ]
        },
    ),
    (
        6,
        {
            "workflow_execution_config": {
                "max_parallelism": 5,
                "security_context": {
                    "run_as": {
                        "iam_role": "role",
                        "k8s_service_account": "account",
                        "execution_identity": "me",
                        "oauth2_client": {"client_id": "c", "client_secret": {"group": "g", "key": "k"}},
                    },
                    "secrets": [{"group": "g", "key": "k", "mount_requirement": "ENV_VAR"}],
                    "tokens": [{"name": "t", "client": {"client_id": "c"}, "token_endpoint": "e"}],
                },
                "raw_output_data_config": {"output_location_prefix": "s3://bucket"},
                "labels": {"values": {"team": "red"}},
                "annotations": {"values": {"note": "why"}},
                "interruptible": False,
                "overwrite_cache": True,
                "envs": {"values": [{"key": "B", "value": "1"}, {"key": "A", "value": "x=y"}]},
            }
        },
        {
            "max_parallelism": 5,
            "security_context": {
                "run_as": {
                    "iam_role": "role",
                    "k8s_service_account": "account",
                    "execution_identity": "me",
                    "oauth2_client": {"client_id": "c", "client_secret": {"group": "g", "key": "k"}},
                },
                "secrets": [{"group": "g", "key": "k", "mount_requirement": "ENV_VAR"}],
                "tokens": [{"name": "t", "client": {"client_id": "c"}, "token_endpoint": "e"}],
            },
            "raw_output_data_config": {"output_location_prefix": "s3://bucket"},
            "labels": {"team": "red"},
            "annotations": {"note": "why"},
            "interruptible": False,
            "overwrite_cache": True,
            "envs": {"B": "1", "A": "x=y"},
        },
    ),
    (7, {"cluster_assignment": {"cluster_pool_name": "gpu"}}, {"cluster_pool_name": "gpu"}),
]


def message(plain: dict[str, Any]) -> Any:
    return json_format.ParseDict(plain, MatchingAttributes())


@pytest.mark.parametrize(("number", "theirs", "ours"), FULL)
def test_every_field_survives_the_way_in_through_the_kind_and_out(
    number: int, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    given = message(theirs)
    kind_number, value = from_matching_attributes(given)
    stored = json.loads(msgspec.json.encode(KIND[number].read(value)))
    assert (kind_number, stored) == (number, json.loads(msgspec.json.encode(KIND[number].read(ours))))
    assert to_matching_attributes(number, stored) == given


def test_the_table_has_every_kind_of_flyte_and_no_field_is_left_out_of_the_rows_above() -> None:
    assert {kind.number: kind.field for kind in KINDS} == {
        number: field.name for number, field in enumerate(MatchingAttributes.DESCRIPTOR.fields)
    }
    assert {type_name(kind.number) for kind in KINDS} == set(MatchableResource.keys())
    seen = {(number, name) for number, theirs, _ in FULL for inner in theirs.values() for name in inner}
    declared = {
        (kind.number, field.name)
        for kind in KINDS
        for field in MatchingAttributes.DESCRIPTOR.fields_by_name[kind.field].message_type.fields
    }
    assert declared - seen == {(6, "execution_env_assignments")}, "which is refused: see below"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "an environment of its own per node",
        {"workflow_execution_config": {"execution_env_assignments": [{"node_ids": ["n"], "task_type": "python"}]}},
        "execution_env_assignments",
    ),
    (
        "a variable twice",
        {"workflow_execution_config": {"envs": {"values": [{"key": "A", "value": "1"}, {"key": "A", "value": "2"}]}}},
        "'A' is given twice",
    ),
    ("half a second", {"quality_of_service": {"spec": {"queueing_budget": "1.500s"}}}, "whole seconds"),
    ("no time at all", {"quality_of_service": {"spec": {}}}, "not a duration"),
    ("a negative time", {"quality_of_service": {"spec": {"queueing_budget": "-5s"}}}, "not a duration"),
    ("an undefined tier", {"quality_of_service": {"tier": "UNDEFINED"}}, "UNDEFINED"),
    ("an empty label", {"execution_cluster_label": {}}, "value"),
    ("a bad quantity", {"task_resource_attributes": {"limits": {"cpu": "lots"}}}, "lots"),
    ("negative parallelism", {"workflow_execution_config": {"max_parallelism": -1}}, "max_parallelism"),
]


@pytest.mark.parametrize(("theirs", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_kept_is_refused_by_name(theirs: dict[str, Any], said: str) -> None:
    def read() -> None:
        number, value = from_matching_attributes(message(theirs))
        KIND[number].read(value)

    with pytest.raises(Malformed, match=said):
        read()


def test_what_flyte_leaves_out_is_not_set() -> None:
    empty = {"max_parallelism": 0, "overwrite_cache": False, "security_context": {}}
    assert from_matching_attributes(message({"workflow_execution_config": empty})) == (6, {"security_context": {}})
    blank = {"task_resource_attributes": {"limits": {"cpu": "1", "memory": ""}}}
    assert from_matching_attributes(message(blank)) == (0, {"limits": {"cpu": "1"}})


def test_a_budget_in_our_words_is_seconds_in_flytes() -> None:
    attributes = to_matching_attributes(4, {"queueing_budget": "1h30m"})
    assert attributes.quality_of_service.spec.queueing_budget.seconds == 5400


def test_spill_rules_are_ours_alone() -> None:
    value = {"cluster_pool_name": "main", "spill": ["after 10m try pool burst"]}
    assert from_matching_attributes(to_matching_attributes(7, value)) == (7, {"cluster_pool_name": "main"})
