"""What Flyte's short addresses name (`flyte://v1/…`): inputs and outputs of nodes, and decks, the pages of tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from flyteidl.core import literals_pb2

from switchyard.errors import BadRequest, NotFound
from switchyard.features.flyte.service.executions.calls import reads
from switchyard.features.flyte.service.executions.calls.data_proxy import (
    DataAddress,
    OutputFile,
    create_output_location,
    output_file_entry,
)
from switchyard.features.flyte.service.executions.calls.decks import DECK
from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.store.executions.executions import ExecutionKey
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

FLYTE_URL = re.compile(
    r"flyte://v1/(?P<project>[^/]+)/(?P<domain>[^/]+)/(?P<name>[^/]+)/(?P<node_id>[^/]+)"
    r"(/(?P<attempt>[0-9]{1,6}))?/(?P<kind>[iod])(/(?P<variable>[^/]+))?\Z"
)
URL_CHARS_MAX = 2000
START, END = "start-node", "end-node"


@dataclass(frozen=True, slots=True)
class FlyteUrl:
    """`kind`: i for inputs, o for outputs, d for the deck. `attempt`: None: the last one."""

    key: ExecutionKey
    node_id: str
    kind: str
    attempt: int | None = None
    variable: str = ""


def read_flyte_url(text: str) -> FlyteUrl:
    match = FLYTE_URL.match(text) if len(text) <= URL_CHARS_MAX and "\0" not in text else None
    if match is None or (match["kind"] == "d" and match["variable"]):
        form = "flyte://v1/PROJECT/DOMAIN/EXECUTION/NODE[/ATTEMPT]/(i|o|d)[/VARIABLE]"
        raise BadRequest(f"{text[:200]!r} is no address of data; one has the form {form}")
    key = ExecutionKey(match["project"], match["domain"], match["name"])
    attempt = int(match["attempt"]) if match["attempt"] else None
    return FlyteUrl(key, match["node_id"], match["kind"], attempt, match["variable"] or "")


def read_values(context: Context, actor: Actor, url: FlyteUrl) -> Any:
    """The values that an address names: a literal map, or a literal if the address names a variable."""
    values = literals_pb2.LiteralMap.FromString(_body(context, actor, url) or b"")
    if not url.variable:
        return values
    if url.variable not in values.literals:
        raise NotFound(f"{url.key}:{url.node_id[:200]} has no {_word(url)} {url.variable[:80]!r}.")
    return values.literals[url.variable]


def _body(context: Context, actor: Actor, url: FlyteUrl) -> bytes | None:
    if url.node_id in (START, END):
        row = reads.get_execution(context, actor, url.key).row
        return row.inputs if url.node_id == START else row.outputs
    node = reads.get_node(context, actor, url.key, url.node_id).row
    if url.kind == "i":
        return node.inputs
    if url.attempt is not None:
        attempt = reads.get_attempt(context, actor, url.key, url.node_id, url.attempt)
        return node.outputs if attempt.phase == "SUCCEEDED" else None
    return node.outputs


def _word(url: FlyteUrl) -> str:
    return "input" if url.kind == "i" else "output"


def deck_location(
    context: Context, actor: Actor, key: ExecutionKey, node_id: str, *, attempt: int | None, expires_in: Any
) -> DataAddress:
    """An address that reads the deck of an attempt. Raises NotFound if it left none, or its files are gone."""
    with context.database.read() as tx:
        execution = reads.find_execution(tx, actor, key)
        if attempt is None:
            attempts = execution_nodes.attempt_list(tx, execution.id, node_id) if "\0" not in node_id else []
            attempt = attempts[-1].attempt if attempts else 0
        job = execution_nodes.job_of_attempt(tx, execution.id, node_id, attempt) if "\0" not in node_id else None
    if job is not None and job.output_root is not None:
        file = OutputFile(job.job_id, job.fence, DECK)
        if output_file_entry(context, file) is not None:
            return create_output_location(context, actor, key.project, key.domain, file, expires_in=expires_in)
    raise NotFound(f"missing entity of type deck with identifier {key}:{node_id[:200]}: the task left none")
