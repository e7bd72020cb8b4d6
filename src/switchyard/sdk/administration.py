"""Clusters, agents, users, tokens, grants, projects and the audit, as calls. It knows nothing of jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from switchyard.errors import NotFound, TimedOut
from switchyard.model.access import (
    EVERYONE,
    Grant,
    GranteeKind,
    GrantRequest,
    GrantTarget,
    NewToken,
    Role,
    Token,
    TokenRequest,
    User,
    UserChange,
    UserRequest,
)
from switchyard.model.api import AuditEntry, Page, Project, ProjectChange, ProjectRequest
from switchyard.model.cluster import (
    Agent,
    AgentChange,
    Cluster,
    ClusterChange,
    ClusterRequest,
    Invite,
    InviteRequest,
    NewInvite,
    SubmitConsent,
    SubmitToken,
)
from switchyard.model.selection import Scalar
from switchyard.sdk.calls import api_path
from switchyard.sdk.layouts import LayoutCalls
from switchyard.sdk.rules import RuleCalls
from switchyard.sdk.token_pools import TokenPoolCalls

DRAIN_POLL_S = 0.5  # between two looks at a cluster that empties


class AdminCalls(RuleCalls, LayoutCalls, TokenPoolCalls):
    """The part of the client that is about the place, not about jobs."""

    def clusters(self, *, limit: int | None = None) -> Iterator[Cluster]:
        return self._walk(api_path("clusters"), Page[Cluster], limit=limit)

    def cluster(self, name: str) -> Cluster:
        return self._get(api_path("clusters", name), Cluster)

    def create_cluster(
        self, name: str, *, private: bool = False, groups: Sequence[str] = (), labels: Mapping[str, str] | None = None
    ) -> Cluster:
        body = ClusterRequest(name, is_private=private, groups=list(groups), labels=dict(labels or {}))
        return self._post(api_path("clusters"), Cluster, body=body)

    def change_cluster(
        self,
        name: str,
        *,
        cordoned: bool | None = None,
        private: bool | None = None,
        groups: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        reason: str = "",
        state: Mapping[str, Scalar | None] | None = None,
    ) -> Cluster:
        """Change what is given; what is not stays. Of `state` only the named values change; none takes one away."""
        body = ClusterChange(
            is_cordoned=cordoned,
            is_private=private,
            groups=None if groups is None else list(groups),
            labels=None if labels is None else dict(labels),
            reason=reason,
            state=None if state is None else dict(state),
        )
        return self._patch(api_path("clusters", name), Cluster, body=body)

    def drain_cluster(
        self,
        name: str,
        *,
        reason: str = "",
        timeout_s: float | None = None,
        on_progress: Callable[[Cluster], None] | None = None,
    ) -> Cluster:
        """Give a cluster no new jobs, and wait until its agents have none. `on_progress` is told what is left."""
        self.change_cluster(name, cordoned=True, reason=reason)
        return self.wait_empty(name, timeout_s=timeout_s, on_progress=on_progress)

    def wait_empty(
        self, name: str, *, timeout_s: float | None = None, on_progress: Callable[[Cluster], None] | None = None
    ) -> Cluster:
        """Wait until the agents of a cluster have no jobs."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.cluster(name)
            if on_progress is not None:
                on_progress(found)
            if not found.held:
                return found
            left_s = DRAIN_POLL_S if end is None else end - time.monotonic()
            if left_s <= 0:
                raise TimedOut(
                    f"Cluster {name} still has {found.held} job{'' if found.held == 1 else 's'}.",
                    next_step="Wait on, or cancel them: `yard cancel --cluster` names a cluster.",
                )
            time.sleep(min(left_s, DRAIN_POLL_S))

    def delete_cluster(self, name: str, *, abandon: bool = False) -> None:
        """End a registration. `abandon`: also while jobs run there; they end as FAILED."""
        self._delete(api_path("clusters", name), query={"abandon": "true" if abandon else None})

    def invite(
        self,
        cluster: str,
        *,
        reusable: bool = False,
        expires_s: int = 86_400,
        private: bool = False,
        groups: Sequence[str] = (),
    ) -> NewInvite:
        """A join token for an agent of this cluster; makes the cluster if there is none."""
        body = InviteRequest(is_reusable=reusable, expires_s=expires_s, is_private=private, groups=list(groups))
        return self._post(api_path("clusters", cluster, "invites"), NewInvite, body=body)

    def invites(self, cluster: str, *, limit: int | None = None) -> Iterator[Invite]:
        return self._walk(api_path("clusters", cluster, "invites"), Page[Invite], limit=limit)

    def revoke_invite(self, invite: str) -> None:
        self._delete(api_path("invites", invite))

    def submit_token(self, cluster: str, *, account: str | None = None) -> SubmitToken:
        """A new submit token of this cluster; the old one ends. `account`: whose jobs they are that show only it."""
        return self._post(api_path("clusters", cluster, "submit-token"), SubmitToken, query={"account": account})

    def agree(self, cluster: str) -> SubmitConsent:
        """Agree that this cluster's administrators make submit tokens in your name."""
        return self._put_bytes(api_path("clusters", cluster, "submit-consent"), SubmitConsent, body=b"")

    def disagree(self, cluster: str) -> None:
        """Withdraw that: submit tokens in your name end."""
        self._delete(api_path("clusters", cluster, "submit-consent"))

    def group_submit_token(self, group: str, *, account: str | None = None) -> SubmitToken:
        """The same for all clusters of a group."""
        return self._post(api_path("cluster-groups", group, "submit-token"), SubmitToken, query={"account": account})

    def agents(self, *, cluster: str | None = None, limit: int | None = None) -> Iterator[Agent]:
        return self._walk(api_path("agents"), Page[Agent], query={"cluster": cluster}, limit=limit)

    def agent(self, key: str) -> Agent:
        """By id, the start of an id, or a name that only one agent has."""
        found = [known for known in self.agents() if known.name == key or known.id.startswith(key)]
        if len(found) == 1:
            return found[0]
        why = "There is no agent" if not found else f"{len(found)} agents answer to"
        raise NotFound(f"{why} {key!r}.", next_step="`yard agent ls` lists them; the full id is never ambiguous.")

    def change_agent(
        self, agent: str, *, paused: bool | None = None, rotate: bool | None = None, reason: str = ""
    ) -> Agent:
        """Pause or resume it, or ask it to get a new credential; what is not given stays."""
        body = AgentChange(is_paused=paused, is_rotation_asked=rotate, reason=reason)
        return self._patch(api_path("agents", agent), Agent, body=body)

    def delete_agent(self, agent: str, *, abandon: bool = False) -> None:
        """End this agent's registration: its credential no longer holds. `abandon`: also while it has jobs."""
        self._delete(api_path("agents", agent), query={"abandon": "true" if abandon else None})

    def users(self, *, limit: int | None = None) -> Iterator[User]:
        return self._walk(api_path("users"), Page[User], limit=limit)

    def user(self, name: str) -> User:
        return self._get(api_path("users", name), User)

    def create_user(self, name: str, *, full_name: str = "", groups: Sequence[str] = ()) -> User:
        return self._post(api_path("users"), User, body=UserRequest(name, full_name=full_name, groups=list(groups)))

    def change_user(
        self,
        name: str,
        *,
        full_name: str | None = None,
        groups: Sequence[str] | None = None,
        enabled: bool | None = None,
    ) -> User:
        """Change what is given; what is not stays."""
        body = UserChange(full_name, None if groups is None else list(groups), enabled)
        return self._patch(api_path("users", name), User, body=body)

    def delete_user(self, name: str) -> None:
        self._delete(api_path("users", name))

    def access_tokens(self, *, limit: int | None = None) -> Iterator[Token]:
        return self._walk(api_path("tokens"), Page[Token], limit=limit)

    def create_token(self, *, user: str | None = None, note: str = "", expires_s: int | None = None) -> NewToken:
        """A token for yourself, or for another user. The secret is shown this once."""
        return self._post(api_path("tokens"), NewToken, body=TokenRequest(user, note, expires_s))

    def revoke_token(self, token: str, *, only: bool = False) -> None:
        """With it end the tokens that were made with it. `only`: they do not; for platform administrators."""
        self._delete(api_path("tokens", token), query={"only": "true"} if only else {})

    def grants(self, *, limit: int | None = None) -> Iterator[Grant]:
        return self._walk(api_path("grants"), Page[Grant], limit=limit)

    def create_grant(
        self,
        role: Role | str,
        *,
        to: GranteeKind | str,
        on: GrantTarget | str,
        subject: str = EVERYONE,
        object: str = "all",  # noqa: A002
    ) -> Grant:
        body = GrantRequest(Role(role), GranteeKind(to), GrantTarget(on), subject, object)
        return self._post(api_path("grants"), Grant, body=body)

    def delete_grant(self, grant: str) -> None:
        self._delete(api_path("grants", grant))

    def projects(self, *, limit: int | None = None) -> Iterator[Project]:
        return self._walk(api_path("projects"), Page[Project], limit=limit)

    def project(self, name: str) -> Project:
        return self._get(api_path("projects", name), Project)

    def create_project(
        self, name: str, *, description: str = "", title: str = "", labels: Mapping[str, str] | None = None
    ) -> Project:
        body = ProjectRequest(name, description=description, title=title, labels=dict(labels or {}))
        return self._post(api_path("projects"), Project, body=body)

    def change_project(
        self,
        name: str,
        *,
        description: str | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        archived: bool | None = None,
    ) -> Project:
        """Change what is given; what is not stays. An archived project takes no jobs and no rules."""
        body = ProjectChange(
            description=description,
            title=title,
            labels=None if labels is None else dict(labels),
            is_archived=archived,
        )
        return self._patch(api_path("projects", name), Project, body=body)

    def audit(self, *, limit: int | None = None) -> Iterator[AuditEntry]:
        """Who changed what, newest first."""
        return self._walk(api_path("audit"), Page[AuditEntry], limit=limit)
