"""A form that describes a job and shows where it would go, before anything is submitted."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from switchyard.errors import Malformed, YardError
from switchyard.model.cluster.verdict import Answer, Plan
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.names import escape_hidden
from switchyard.model.wire.decode import JsonReader
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.server.pages.web_page import PageValues, WebPage

VERDICTS_MAX = 200
ANSWER_ORDER = {Answer.YES: 0, Answer.WAIT: 1, Answer.NO: 2}
# Fields of the form, called as in `yard submit` and `Client.submit`.
RESOURCES = ("nodes", "tasks", "cores", "gpus", "memory", "time_limit")
NUMBERS = ("nodes", "tasks", "gpus", "priority")
PLACES = ("project", "domain", "cluster", "pool", "name", "priority")
COMMAND_CHARS_MAX = 8000  # the address holds the command, and proxies bound an address
QUERY = (
    QueryParameter("command", about="the command, as in a shell", chars_max=COMMAND_CHARS_MAX),
    QueryParameter("image", about="a container image"),
    QueryParameter("array", about="indexes, such as 0-99"),
    *(QueryParameter(name) for name in (*RESOURCES, *PLACES)),
)

_request = JsonReader(JobRequest)


def load(call: Call) -> PageValues:
    fields = dict(call.query)
    values: dict[str, Any] = {"fields": fields, "chars_max": COMMAND_CHARS_MAX}
    values |= {"plan": None, "problem": None, "verdicts": [], "verdict_count": 0}
    if not fields:
        return values
    try:
        request = read_request(fields)
        plan = call.services.submit.plan(call.actor, request)
    except YardError as exc:
        return {**values, "problem": exc}
    return {
        **values,
        "plan": plan,
        "verdicts": _ranked(plan)[:VERDICTS_MAX],
        "verdict_count": len(plan.verdicts),
        "body": escape_hidden(msgspec.json.encode(request).decode()),  # it is submitted as it stands there
        "shell": shell_form(fields),
        "python": python_form(fields),
    }


def read_request(fields: dict[str, str]) -> JobRequest:
    """The job that the form describes, checked as a body of the API is."""
    resources = {name: _number(fields[name]) for name in RESOURCES if name in fields}
    spec: dict[str, Any] = {"command": _command(fields)}
    spec |= {"resources": resources} if resources else {}
    spec |= {"image": fields["image"]} if "image" in fields else {}
    body: dict[str, Any] = {"spec": spec}
    body |= {name: _number(fields[name]) if name in NUMBERS else fields[name] for name in PLACES if name in fields}
    body |= {"array": fields["array"]} if "array" in fields else {}
    request: JobRequest = _request.read(msgspec.json.encode(body))
    return request


def _command(fields: dict[str, str]) -> list[str]:
    """The words of the command. No shell runs them, so `;` and `$` are plain text."""
    try:
        return shlex.split(fields.get("command", "")) or ["true"]
    except ValueError as exc:
        raise Malformed(f"The command cannot be read: {exc}.") from exc


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() and len(text) < 12 else text


def _ranked(plan: Plan) -> list[Any]:
    return sorted(
        plan.verdicts, key=lambda verdict: (verdict.cluster != plan.chosen, ANSWER_ORDER[verdict.say], verdict.cluster)
    )


def shell_form(fields: dict[str, str]) -> str:
    """The same job as a command line. Each word is quoted: a shell that gets it pasted runs `yard` alone."""
    words = ["yard", "submit"]
    for name, value in fields.items():
        if name != "command":
            words += [f"--{name.replace('_', '-')}", value]
    return shlex.join([*words, "--", *_command(fields)])


def python_form(fields: dict[str, str]) -> str:
    """The same job in Python."""
    arguments = [repr(_command(fields))]
    arguments += [f"{name}={_number(value)!r}" for name, value in fields.items() if name != "command"]
    return f"from switchyard import Client\n\nwith Client() as yard:\n    job = yard.submit({', '.join(arguments)})"


PAGE = WebPage(
    "/plan",
    "plan.html",
    title="Plan",
    load=load,
    query=QUERY,
    live=("result",),
    refresh_s=10.0,
    pause_s=2.0,
    is_heavy=True,
    menu="Plan",
)
