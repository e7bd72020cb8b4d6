"""Checks a launch plan against its workflow, and completes its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from flyteidl.admin import schedule_pb2
from flyteidl.core import execution_pb2, interface_pb2, types_pb2

from switchyard.features.flyte.workflow.lists.cron import cron_mistake
from switchyard.features.flyte.workflow.values.bindings import show_type
from switchyard.features.flyte.workflow.values.casting import Caster
from switchyard.features.flyte.workflow.values.literals import type_of_literal
from switchyard.model.executions.execution import server_label_mistakes

LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")
LABEL_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
UNITS_S = {schedule_pb2.MINUTE: 60, schedule_pb2.HOUR: 3600, schedule_pb2.DAY: 86_400}
RATE_DAYS_MAX = 36_525  # a time that is further away than the calendar goes cannot be stored
RATE_US_MAX = RATE_DAYS_MAX * 86_400_000_000
_Phase = execution_pb2.WorkflowExecution
TERMINAL = frozenset({_Phase.SUCCEEDED, _Phase.FAILED, _Phase.ABORTED, _Phase.TIMED_OUT})


def expected_inputs(spec: Any, inputs: Mapping[str, Any]) -> Any:
    """The plan's inputs: its defaults, and the workflow's other inputs as required ones. Fixed inputs are none."""
    expected = interface_pb2.ParameterMap()
    for name, variable in inputs.items():
        if name in spec.default_inputs.parameters:
            expected.parameters[name].CopyFrom(spec.default_inputs.parameters[name])
        elif name not in spec.fixed_inputs.literals:
            expected.parameters[name].var.CopyFrom(variable)
            expected.parameters[name].required = True
    return expected


def launch_plan_mistakes(spec: Any, inputs: Mapping[str, Any]) -> Iterator[str]:
    """All mistakes of a launch plan. `inputs`: the workflow's variables by name."""
    yield from label_mistakes(spec.labels.values)
    yield from _input_mistakes(spec, inputs)
    yield from _schedule_mistakes(spec, inputs)
    yield from notification_mistakes(spec.entity_metadata.notifications)


def label_mistakes(labels: Mapping[str, str]) -> Iterator[str]:
    yield from server_label_mistakes(sorted(labels))
    for key in sorted(labels):
        prefix, slash, name = key.rpartition("/")
        if not LABEL_NAME.match(name) or (slash and (len(prefix) > 253 or not LABEL_PREFIX.match(prefix))):
            yield f"invalid label key [{key[:80]}]: it is no label key of Kubernetes"
        if labels[key] and not LABEL_NAME.match(labels[key]):
            yield f"invalid label value [{labels[key][:80]}] of {key[:80]}: it is no label value of Kubernetes"


def _input_mistakes(spec: Any, inputs: Mapping[str, Any]) -> Iterator[str]:
    caster = Caster()
    for name in sorted(spec.default_inputs.parameters):
        parameter = spec.default_inputs.parameters[name]
        if name not in inputs:
            yield f"unexpected default_input {name[:80]}"
            continue
        wanted, given = inputs[name].type, parameter.var.type
        if not caster.can_cast(given, wanted):
            yield f"invalid default_input wrong type {name}, expected {show_type(wanted)}, got {show_type(given)}"
        if parameter.HasField("default"):
            yield from _literal_mistakes("default_input", name, parameter.default, wanted, caster)
        if name in spec.fixed_inputs.literals:
            yield f"input {name} has both a default and a fixed value: no execution could ever start"
    for name in sorted(spec.fixed_inputs.literals):
        if name not in inputs:
            yield f"unexpected fixed_input {name[:80]}"
        else:
            yield from _literal_mistakes(
                "fixed_input", name, spec.fixed_inputs.literals[name], inputs[name].type, caster
            )


def _literal_mistakes(word: str, name: str, literal: Any, wanted: Any, caster: Caster) -> Iterator[str]:
    kind = type_of_literal(literal)
    if kind is None:
        yield f"{word} {name} has no value"
    elif not caster.can_cast(kind, wanted):
        yield f"invalid {word} wrong type {name}, expected {show_type(wanted)}, got {show_type(kind)} instead"
    elif wanted.WhichOneof("type") == "enum_type":
        value = literal.scalar.primitive.string_value
        if value not in wanted.enum_type.values:
            yield f"invalid {word} {name}: [{value[:80]}] is none of {list(wanted.enum_type.values[:20])}"


def rate_us(rate: Any) -> int:
    """The time between two executions of a fixed rate."""
    return int(rate.value) * UNITS_S[rate.unit] * 1_000_000


def _schedule_mistakes(spec: Any, inputs: Mapping[str, Any]) -> Iterator[str]:
    schedule = spec.entity_metadata.schedule
    case = schedule.WhichOneof("ScheduleExpression")
    if case is None:
        return
    if case == "rate":
        if not schedule.rate.value or schedule.rate.unit not in schedule_pb2.FixedRateUnit.values():
            yield "a rate has a value above 0 and a unit: minute, hour or day"
        elif rate_us(schedule.rate) > RATE_US_MAX:
            yield f"a rate is at most {RATE_DAYS_MAX} days (100 years); use a shorter one, or no schedule"
    else:
        text = schedule.cron_schedule.schedule if case == "cron_schedule" else schedule.cron_expression
        # Schedules of six fields are AWS's, which the deprecated field was for.
        is_aws = case == "cron_expression" and len(text.split()) == 6
        if not is_aws and (mistake := cron_mistake(text)):
            yield mistake
    yield from _kickoff_mistakes(spec, inputs, schedule.kickoff_time_input_arg)


def _kickoff_mistakes(spec: Any, inputs: Mapping[str, Any], kickoff: str) -> Iterator[str]:
    """A schedule starts executions by itself, so every input must have a value."""
    parameters = expected_inputs(spec, inputs).parameters
    for name in sorted(parameters):
        if parameters[name].required and name != kickoff:
            yield (
                "Cannot create a launch plan with a schedule if there is an unbound required input. "
                f"[{name[:80]}] is required"
            )
    if not kickoff:
        return
    if kickoff not in parameters:
        yield f"KickoffTimeInputArg [{kickoff[:80]}] is not free or does not exist"
    elif parameters[kickoff].var.type.simple != types_pb2.DATETIME:
        yield f"KickoffTimeInputArg must reference a datetime input. [{kickoff[:80]}] is none"


def notification_mistakes(notifications: Any) -> Iterator[str]:
    for notification in notifications:
        case = notification.WhichOneof("type")
        if case is None:
            yield "a notification has no type"
        elif not getattr(notification, case).recipients_email:
            yield f"missing recipients of a notification ({case})"
        if not notification.phases:
            yield "missing phases of a notification"
        if any(phase not in TERMINAL for phase in notification.phases):
            yield "a notification names a phase that is not terminal"
