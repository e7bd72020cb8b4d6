"""Client calls for clusters, agents, users, tokens, grants, projects and the audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from switchyard.errors import NotFound, TimedOut
from switchyard.model.cluster.cluster import (
    Agent,
    AgentChange,
    Cluster,
    ClusterChange,
    ClusterRequest,
    GroupInvite,
    GroupInviteRequest,
    Invite,
    InviteJob,
    InviteRequest,
    NewGroupInvite,
    NewInvite,
    SubmitConsent,
    SubmitToken,
)
from switchyard.model.cluster.probation import ProbationAction, ProbationChange
from switchyard.model.cluster.selection import Scalar
from switchyard.model.rules.access import (
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
from switchyard.model.wire.api import AuditEntry, Deleted, Page, Project, ProjectChange, ProjectRequest
from switchyard.sdk.transport.calls import ApiCalls, api_path

DRAIN_POLL_S = 0.5  # between two polls of a draining cluster


class AdminCalls(ApiCalls):
    """The client's calls for administrators and operators."""

    def clusters(self, *, limit: int | None = None) -> Iterator[Cluster]:
        """Yield the clusters that you may see, at most `limit`."""
        return self._walk(api_path("clusters"), Page[Cluster], limit=limit)

    def cluster(self, name: str) -> Cluster:
        """Return a cluster. Raise NotFound if there is none of this name that you may see."""
        return self._get(api_path("clusters", name), Cluster)

    def create_cluster(
        self,
        name: str,
        *,
        private: bool = False,
        groups: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        namespaces: Sequence[str] = (),
    ) -> Cluster:
        """Create a cluster without an agent: `invite` gives the token to join it. Raise NameTaken if it exists.

        `namespaces`: it is a Kubernetes cluster, and its agents get the objects of these namespaces (`*`: of all).
        """
        body = ClusterRequest(
            name, is_private=private, groups=list(groups), labels=dict(labels or {}), namespaces=list(namespaces)
        )
        return self._post(api_path("clusters"), Cluster, body=body)

    def change_cluster(
        self,
        name: str,
        *,
        cordoned: bool | None = None,
        private: bool | None = None,
        groups: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        namespaces: Sequence[str] | None = None,
        reason: str = "",
        state: Mapping[str, Scalar | None] | None = None,
    ) -> Cluster:
        """Change the given fields; the others stay. In `state` only the named values change; None removes a value."""
        body = ClusterChange(
            is_cordoned=cordoned,
            is_private=private,
            groups=None if groups is None else list(groups),
            labels=None if labels is None else dict(labels),
            namespaces=None if namespaces is None else list(namespaces),
            reason=reason,
            state=None if state is None else dict(state),
        )
        return self._patch(api_path("clusters", name), Cluster, body=body)

    def change_probation(self, name: str, action: ProbationAction | str, *, reason: str = "") -> Cluster:
        """Confirm or clear the probation of a cluster, or switch it off or on. Needs the role operate."""
        body = ProbationChange(ProbationAction(action), reason)
        return self._post(api_path("clusters", name, "probation"), Cluster, body=body)

    def drain_cluster(
        self,
        name: str,
        *,
        reason: str = "",
        timeout_s: float | None = None,
        on_progress: Callable[[Cluster], None] | None = None,
    ) -> Cluster:
        """Cordon a cluster, and wait until its agents have no jobs. `on_progress` gets the cluster at every poll."""
        self.change_cluster(name, cordoned=True, reason=reason)
        return self.wait_empty(name, timeout_s=timeout_s, on_progress=on_progress)

    def wait_empty(
        self, name: str, *, timeout_s: float | None = None, on_progress: Callable[[Cluster], None] | None = None
    ) -> Cluster:
        """Wait until the agents of a cluster have no jobs and have sent all output files, and return the cluster.

        Raise TimedOut after `timeout_s`.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            cluster = self._get(api_path("clusters", name), Cluster, retry_s=self._patience_s(end))
            if on_progress is not None:
                on_progress(cluster)
            if not cluster.held and not cluster.unsent:
                return cluster
            left_s = DRAIN_POLL_S if end is None else end - time.monotonic()
            if left_s <= 0:
                if cluster.held:
                    raise TimedOut(
                        f"Cluster {name} still has {cluster.held} job{'' if cluster.held == 1 else 's'}.",
                        next_step=f"Wait longer, or cancel them: `yard cancel --cluster {name}`.",
                    )
                raise TimedOut(
                    f"Cluster {name} still sends output files of {cluster.unsent} ended jobs or tasks.",
                    next_step=f"Wait longer, or see what holds them up: `yard cluster show {name}`.",
                )
            time.sleep(min(left_s, DRAIN_POLL_S))

    def delete_cluster(self, name: str, *, abandon: bool = False) -> Deleted:
        """Remove a cluster. `abandon`: also while jobs run there, which end as FAILED, or output files are not sent."""
        answer = self._delete(api_path("clusters", name), query={"abandon": "true" if abandon else None})
        return self._answer(answer, Deleted)

    def invite(
        self,
        cluster: str,
        *,
        reusable: bool = False,
        expires_s: int = 86_400,
        private: bool = False,
        groups: Sequence[str] = (),
        ephemeral: bool = False,
        for_job: bool = False,
        namespaces: Sequence[str] = (),
    ) -> NewInvite:
        """Create a join token for an agent of this cluster, and the cluster if it does not exist.

        `ephemeral`: a new cluster leaves by itself when the time of its agent is over. `for_job`: only an agent inside
        of the job that `bind_invite` names joins with the token. `namespaces`: the cluster is a Kubernetes cluster, as
        in `create_cluster`.
        """
        body = InviteRequest(
            is_reusable=reusable,
            expires_s=expires_s,
            is_private=private,
            groups=list(groups),
            is_ephemeral=ephemeral,
            is_for_job=for_job,
            namespaces=list(namespaces),
        )
        return self._post(api_path("clusters", cluster, "invites"), NewInvite, body=body)

    def bind_invite(self, invite: str, job: str) -> Invite:
        """Say which job a join token made with `for_job` is for. It cannot be changed later."""
        return self._put(api_path("invites", invite, "job"), Invite, body=InviteJob(job), headers={})

    def invites(self, cluster: str, *, limit: int | None = None) -> Iterator[Invite]:
        """Yield the join tokens of a cluster, without their secrets."""
        return self._walk(api_path("clusters", cluster, "invites"), Page[Invite], limit=limit)

    def revoke_invite(self, invite: str) -> None:
        """Revoke a join token by its id. Raise NotFound if there is none."""
        self._delete(api_path("invites", invite))

    def invite_group(
        self,
        group: str,
        *,
        agents: int = 1,
        expires_s: int = 86_400,
        private: bool = False,
        ephemeral: bool = False,
        namespaces: Sequence[str] = (),
    ) -> NewGroupInvite:
        """Create a join token by which so many agents join, each with a cluster of this group.

        `namespaces`: these are Kubernetes clusters, as in `create_cluster`.
        """
        body = GroupInviteRequest(
            uses_max=agents,
            expires_s=expires_s,
            is_private=private,
            is_ephemeral=ephemeral,
            namespaces=list(namespaces),
        )
        return self._post(api_path("cluster-groups", group, "invites"), NewGroupInvite, body=body)

    def group_invites(self, group: str, *, limit: int | None = None) -> Iterator[GroupInvite]:
        """Yield the join tokens of a group, without their secrets."""
        return self._walk(api_path("cluster-groups", group, "invites"), Page[GroupInvite], limit=limit)

    def revoke_group_invite(self, group: str, invite: str) -> None:
        """Revoke a join token of a group. Agents that joined with it stay. Raise NotFound if there is none."""
        self._delete(api_path("cluster-groups", group, "invites", invite))

    def submit_token(self, cluster: str, *, account: str | None = None) -> SubmitToken:
        """Create a submit token of this cluster; the old one ends. `account`: the user whose jobs it submits."""
        return self._post(api_path("clusters", cluster, "submit-token"), SubmitToken, query={"account": account})

    def agree(self, cluster: str) -> SubmitConsent:
        """Allow this cluster's administrators to make submit tokens in your name."""
        return self._put_bytes(api_path("clusters", cluster, "submit-consent"), SubmitConsent, body=b"")

    def disagree(self, cluster: str) -> None:
        """Withdraw the consent of `agree`. Submit tokens in your name end."""
        self._delete(api_path("clusters", cluster, "submit-consent"))

    def group_submit_token(self, group: str, *, account: str | None = None) -> SubmitToken:
        """Create a submit token for all clusters of a group; the old one ends."""
        return self._post(api_path("cluster-groups", group, "submit-token"), SubmitToken, query={"account": account})

    def agents(self, *, cluster: str | None = None, limit: int | None = None) -> Iterator[Agent]:
        """Yield the agents that you may see, of one cluster or of all."""
        return self._walk(api_path("agents"), Page[Agent], query={"cluster": cluster}, limit=limit)

    def agent(self, key: str) -> Agent:
        """Return an agent by its id, the start of its id, or a unique name."""
        matches = [known for known in self.agents() if known.name == key or known.id.startswith(key)]
        if len(matches) == 1:
            return matches[0]
        why = "There is no agent" if not matches else f"{len(matches)} agents answer to"
        raise NotFound(f"{why} {key!r}.", next_step="`yard agent ls` lists them; the full id is never ambiguous.")

    def change_agent(
        self, agent: str, *, paused: bool | None = None, rotate: bool | None = None, reason: str = ""
    ) -> Agent:
        """Pause or resume an agent, or ask it to rotate its credential. Fields that are not given stay."""
        body = AgentChange(is_paused=paused, is_rotation_asked=rotate, reason=reason)
        return self._patch(api_path("agents", agent), Agent, body=body)

    def delete_agent(self, agent: str, *, abandon: bool = False) -> Deleted:
        """Remove an agent: its credential ends. `abandon`: also while it has jobs or unsent output files."""
        answer = self._delete(api_path("agents", agent), query={"abandon": "true" if abandon else None})
        return self._answer(answer, Deleted)

    def users(self, *, limit: int | None = None) -> Iterator[User]:
        """Yield all users, at most `limit`."""
        return self._walk(api_path("users"), Page[User], limit=limit)

    def user(self, name: str) -> User:
        """Return a user. Raise NotFound if there is none of this name."""
        return self._get(api_path("users", name), User)

    def create_user(self, name: str, *, full_name: str = "", groups: Sequence[str] = ()) -> User:
        """Create a user without grants and tokens. Raise NameTaken if the user exists."""
        return self._post(api_path("users"), User, body=UserRequest(name, full_name=full_name, groups=list(groups)))

    def change_user(
        self,
        name: str,
        *,
        full_name: str | None = None,
        groups: Sequence[str] | None = None,
        enabled: bool | None = None,
    ) -> User:
        """Change the given fields; the others stay."""
        body = UserChange(full_name, None if groups is None else list(groups), enabled)
        return self._patch(api_path("users", name), User, body=body)

    def delete_user(self, name: str) -> None:
        """Delete a user with all tokens. Raise NotFound if there is none of this name."""
        self._delete(api_path("users", name))

    def access_tokens(self, *, limit: int | None = None) -> Iterator[Token]:
        """Yield the tokens that you may see, without their secrets."""
        return self._walk(api_path("tokens"), Page[Token], limit=limit)

    def create_token(self, *, user: str | None = None, note: str = "", expires_s: int | None = None) -> NewToken:
        """Create a token for yourself, or for another user. Only this answer has the secret."""
        return self._post(api_path("tokens"), NewToken, body=TokenRequest(user, note, expires_s))

    def revoke_token(self, token: str, *, only: bool = False) -> None:
        """Revoke a token and the tokens made with it. `only`: not those; for platform administrators."""
        self._delete(api_path("tokens", token), query={"only": "true"} if only else {})

    def grants(self, *, limit: int | None = None) -> Iterator[Grant]:
        """Yield the grants that you may see, at most `limit`."""
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
        """Give a user, a group or everyone a role on a project, a cluster or the platform, and return the grant."""
        body = GrantRequest(Role(role), GranteeKind(to), on=GrantTarget(on), subject=subject, object=object)
        return self._post(api_path("grants"), Grant, body=body)

    def delete_grant(self, grant: str) -> None:
        """Delete a grant by its id. Raise NotFound if there is none."""
        self._delete(api_path("grants", grant))

    def projects(self, *, limit: int | None = None) -> Iterator[Project]:
        """Yield the projects that you may see, at most `limit`."""
        return self._walk(api_path("projects"), Page[Project], limit=limit)

    def project(self, name: str) -> Project:
        """Return a project. Raise NotFound if there is none of this name that you may see."""
        return self._get(api_path("projects", name), Project)

    def create_project(
        self, name: str, *, description: str = "", title: str = "", labels: Mapping[str, str] | None = None
    ) -> Project:
        """Create a project. Raise NameTaken if it exists."""
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
        """Change the given fields; the others stay. An archived project takes no jobs and no rules."""
        body = ProjectChange(
            description=description,
            title=title,
            labels=None if labels is None else dict(labels),
            is_archived=archived,
        )
        return self._patch(api_path("projects", name), Project, body=body)

    def audit(self, *, limit: int | None = None) -> Iterator[AuditEntry]:
        """Yield the audit entries, newest first."""
        return self._walk(api_path("audit"), Page[AuditEntry], limit=limit)
