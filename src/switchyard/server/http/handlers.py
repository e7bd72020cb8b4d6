"""One small function per endpoint: from a Call to a use case. Sync; run on a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version as package_version
from typing import Any, TypeVar

from switchyard.errors import BadValue, Malformed
from switchyard.model import jobfile
from switchyard.model.access import Grant, NewToken, Token, User
from switchyard.model.api import AuditEntry, CancelledMany, CreatedJob, Deleted, Event, Me, Output, Page, Version
from switchyard.model.cluster import Agent, Cluster, Invite, NewInvite, SubmitConsent, SubmitToken
from switchyard.model.idset import IdSet
from switchyard.model.job import Job, State, Task
from switchyard.model.names import is_name
from switchyard.model.poll import Joined, Rotated
from switchyard.model.verdict import Explanation, Plan
from switchyard.server.http.call import Call
from switchyard.service.access import submit_tokens, user_tokens, users
from switchyard.service.cluster import agent_join, agents, cluster_show, clusters
from switchyard.service.job import bulk_cancel, explanation, job_control, jobs, tasks
from switchyard.service.run import logs
from switchyard.store.jobs import JobFilter

T = TypeVar("T")


def version(call: Call) -> Version:
    return Version(package_version("switchyard"), call.yard.context.now_us())


def whoami(call: Call) -> Me:
    return users.describe_caller(call.yard.context, call.actor)


def plan(call: Call) -> Plan:
    return call.yard.submit.plan(call.actor, call.body)


def job_list(call: Call) -> Page[Job]:
    wanted = JobFilter(
        states=[_state(text) for text in call.texts("state")],
        cluster=call.text("cluster"),
        project=call.text("project"),
        domain=call.text("domain"),
        owner=call.text("owner"),
        workflow=call.text("workflow"),
        launch_plan=call.text("launch_plan"),
        labels=_labels(call.texts("label")),
        ids=call.texts("id"),
        oldest=bulk_cancel.lowest_id_since(call.yard.context, call.number_or_none("since_s")),
    )
    return jobs.job_list(
        call.yard.context,
        call.actor,
        wanted,
        before=call.text("cursor"),
        limit=call.limit,
        with_spec=call.flag("spec"),
    )


def job_get(call: Call) -> Job:
    return jobs.job_get(call.yard.context, call.actor, call.path["job"])


def job_cancel(call: Call) -> Job:
    if call.body.tasks is not None:
        return job_control.tasks_cancel(call.yard.context, call.actor, call.path["job"], IdSet.parse(call.body.tasks))
    return jobs.job_cancel(call.yard.context, call.actor, call.path["job"], call.body.reason)


def jobs_cancel(call: Call) -> CancelledMany:
    return bulk_cancel.cancel_many(call.yard.context, call.actor, call.body)


def job_change(call: Call) -> Job:
    return job_control.job_change(call.yard.context, call.actor, call.path["job"], call.body)


def job_retry(call: Call) -> CreatedJob:
    return job_control.retry_job(call.yard.context, call.yard.submit, call.actor, call.path["job"], call.body)


def task_list(call: Call) -> Page[Task]:
    after = call.number("cursor", -1)
    states = frozenset(State(_state(text)) for text in call.texts("state"))
    found, more = tasks.task_list(
        call.yard.context, call.actor, call.path["job"], states=states, after=after, limit=call.limit
    )
    return Page(found, None if more is None else str(more))


def job_events(call: Call) -> Page[Event]:
    after = call.number("cursor", 0)
    return jobs.job_events(call.yard.context, call.actor, call.path["job"], after=after, limit=call.limit)


def event_list(call: Call) -> Page[Event]:
    after = max(call.number("cursor", 0), call.number("after", 0))
    since_s = call.number_or_none("since_s")
    return jobs.all_events(call.yard.context, call.actor, after=after, limit=call.limit, since_s=since_s)


def job_output(call: Call) -> Output:
    return logs.job_output(
        call.yard.context,
        call.actor,
        call.path["job"],
        call.text("stream") or "stdout",
        index=call.number_or_none("task"),
        attempt=call.number_or_none("attempt"),
        offset=call.number("offset", 0),
    )


def job_explain(call: Call) -> Explanation:
    return explanation.job_explain(call.yard.context, call.actor, call.path["job"])


def cluster_list(call: Call) -> Page[Cluster]:
    found = clusters.cluster_list(call.yard.context, call.actor)
    return page_of(call, found, lambda cluster: cluster.name)


def cluster_create(call: Call) -> Cluster:
    return clusters.cluster_create(call.yard.context, call.actor, call.body)


def cluster_get(call: Call) -> Cluster:
    return cluster_show.cluster_get(call.yard.context, call.actor, call.path["cluster"])


def cluster_change(call: Call) -> Cluster:
    return clusters.cluster_change(call.yard.context, call.actor, call.path["cluster"], call.body)


def cluster_delete(call: Call) -> Deleted:
    clusters.cluster_delete(call.yard.context, call.actor, call.path["cluster"], abandon=call.flag("abandon"))
    return Deleted(call.path["cluster"])


def invite_create(call: Call) -> NewInvite:
    return clusters.invite_create(call.yard.context, call.actor, _name(call, "cluster"), call.body)


def invite_list(call: Call) -> Page[Invite]:
    after = call.id_cursor or ""
    found = clusters.invite_list(call.yard.context, call.actor, call.path["cluster"], after=after, limit=call.limit)
    return Page(found, found[-1].id if len(found) == call.limit else None)


def invite_revoke(call: Call) -> Deleted:
    clusters.invite_revoke(call.yard.context, call.actor, call.path["invite"])
    return Deleted(call.path["invite"])


def submit_token_create(call: Call) -> SubmitToken:
    account = call.text("account") or ""
    return submit_tokens.create_cluster_token(call.yard.context, call.actor, call.path["cluster"], account)


def consent_give(call: Call) -> SubmitConsent:
    return submit_tokens.set_consent(call.yard.context, call.actor, call.path["cluster"], is_given=True)


def consent_withdraw(call: Call) -> Deleted:
    submit_tokens.set_consent(call.yard.context, call.actor, call.path["cluster"], is_given=False)
    return Deleted(call.path["cluster"])


def group_submit_token_create(call: Call) -> SubmitToken:
    account = call.text("account") or ""
    return submit_tokens.create_group_token(call.yard.context, call.actor, call.path["group"], account)


def agent_list(call: Call) -> Page[Agent]:
    found = agents.agent_list(call.yard.context, call.actor, call.text("cluster"))
    return page_of(call, found, lambda agent: agent.id)


def agent_remove(call: Call) -> Deleted:
    agents.agent_remove(call.yard.context, call.actor, call.path["agent"], abandon=call.flag("abandon"))
    return Deleted(call.path["agent"])


def agent_change(call: Call) -> Agent:
    return agents.agent_change(call.yard.context, call.actor, call.path["agent"], call.body)


def agent_self(call: Call) -> Agent:
    assert call.agent is not None
    return agents.agent_view(call.yard.context, call.agent)


def agent_rotate(call: Call) -> Rotated:
    assert call.agent is not None
    return agents.rotate_credential(call.yard.context, call.agent, call.body)


def job_schema(_call: Call) -> dict[str, Any]:
    return jobfile.job_file_schema()


def cluster_join(call: Call) -> Joined:
    return agent_join.join_agent(call.yard.context, call.token, call.body, is_open=call.yard.settings.is_open)


def user_list(call: Call) -> Page[User]:
    return page_of(call, users.user_list(call.yard.context, call.actor), lambda user: user.name)


def user_create(call: Call) -> User:
    return users.user_create(call.yard.context, call.actor, call.body)


def user_get(call: Call) -> User:
    return users.user_get(call.yard.context, call.actor, call.path["user"])


def user_change(call: Call) -> User:
    return users.user_change(call.yard.context, call.actor, call.path["user"], call.body)


def user_delete(call: Call) -> Deleted:
    users.user_delete(call.yard.context, call.actor, call.path["user"])
    return Deleted(call.path["user"])


def token_list(call: Call) -> Page[Token]:
    found = user_tokens.token_list(call.yard.context, call.actor, after=call.id_cursor or "", limit=call.limit)
    return Page(found, found[-1].id if len(found) == call.limit else None)


def token_create(call: Call) -> NewToken:
    return user_tokens.token_create(call.yard.context, call.actor, call.body)


def token_revoke(call: Call) -> Deleted:
    user_tokens.token_revoke(call.yard.context, call.actor, call.path["token"], only=call.flag("only"))
    return Deleted(call.path["token"])


def grant_list(call: Call) -> Page[Grant]:
    return page_of(call, users.grant_list(call.yard.context, call.actor), lambda grant: grant.id)


def grant_create(call: Call) -> Grant:
    return users.grant_create(call.yard.context, call.actor, call.body)


def grant_delete(call: Call) -> Deleted:
    users.grant_delete(call.yard.context, call.actor, call.path["grant"])
    return Deleted(call.path["grant"])


def audit_list(call: Call) -> Page[AuditEntry]:
    return users.audit_list(call.yard.context, call.actor, before=call.id_cursor, limit=call.limit)


def page_of(call: Call, items: Sequence[T], key: Callable[[T], str]) -> Page[T]:
    """A page of what is in memory, by key."""
    after = call.text("cursor") or ""
    rest = sorted((item for item in items if key(item) > after), key=key)
    page = rest[: call.limit]
    return Page(page, key(page[-1]) if len(rest) > len(page) else None)


def _state(text: str) -> str:
    return State(text.upper()).value


def _labels(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if found.setdefault(key, value) != value:
            raise BadValue(f"The label {key[:80]!r} is asked for with two values; no job has both.")
    return found


def _name(call: Call, word: str) -> str:
    if not is_name(call.path[word]):
        raise Malformed(f"{call.path[word][:80]!r} is not a valid name.")
    return call.path[word]
