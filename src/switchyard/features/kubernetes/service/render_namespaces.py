"""Render the templates of all projects and domains, so that agents can apply them. One of the leader's chores.

A rendering is made when its inputs change: the templates, the config's values or the attributes of its scope. Their
digest is stored with it, so that a new leader renders nothing again. A rendering that fails leaves the objects of the
last good one in place: a mistake in a template must not delete anything on a cluster.

A round is bounded in time. The next one goes on where it stopped, so that every scope has its turn. Agents remove the
objects of namespaces that are in no index. So nothing is announced before all scopes of a new database were rendered.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from switchyard.errors import BadRequest
from switchyard.features.kubernetes.policy.rendered_objects import read_objects
from switchyard.features.kubernetes.service.resource_templates import (
    PlatformValues,
    ResourceTemplates,
    ScopeValues,
    TemplateTexts,
    fill_templates,
    platform_values,
    read_templates,
    scope_values,
)
from switchyard.features.kubernetes.store import namespace_rows
from switchyard.features.kubernetes.store.namespace_rows import NewNamespaceRow
from switchyard.policy.namespace_names import is_scope_named
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.resource_set import TAKEN
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.rules import namespace_resources
from switchyard.store.rules.namespace_resources import NamespaceRow

ROUND_US = 200_000  # length of one round; the next round continues
ROWS_MAX = 50  # per transaction
PAUSE_FACTOR = 4  # at most a fifth of the time is spent on renderings
MISTAKES_SHOWN = 5
MISTAKE_CHARS_MAX = 1000
DIGEST_CHARS = 32

Scope = tuple[str, str]  # project and domain


@dataclass
class NamespaceRendering:
    """The chore. `go` does one bounded round."""

    templates: ResourceTemplates
    rendered_versions: tuple[int, ...] | None = None  # versions of the snapshots at the last complete round
    read_us: int = 0  # when the files were last read, on the steady clock
    rest_until_us: int = 0
    platforms: dict[str, PlatformValues] = field(default_factory=dict)  # by domain, in one round
    owners: dict[str, Scope] = field(default_factory=dict)  # by namespace, in one round
    next_scope: Scope | None = None  # where the next round begins; none: at the first
    looked_at: set[Scope] = field(default_factory=set)  # with the inputs of `looked_inputs`
    looked_inputs: tuple[object, ...] = ()

    def go(self, context: Context, leadership: Leadership) -> int:
        """Do one round if something may have changed. Returns the number of changed namespaces."""
        snapshots, began_us = context.snapshots, context.steady_us()
        versions = (snapshots.policy.version, snapshots.access.version)
        if leadership.epoch is None or min(versions) < 0:
            self.rendered_versions, self.looked_inputs = None, ()
            return 0
        is_read_due = began_us - self.read_us >= self.templates.refresh_s * 1_000_000
        if began_us < self.rest_until_us or not (is_read_due or versions != self.rendered_versions):
            return 0
        changed, is_left = self._round(context, leadership, began_us, versions)
        over_us = context.steady_us()
        self.rest_until_us = over_us + PAUSE_FACTOR * (over_us - began_us)
        self.rendered_versions = None if is_left else versions
        self.read_us = began_us
        return changed

    def _round(
        self, context: Context, leadership: Leadership, began_us: int, versions: tuple[int, ...]
    ) -> tuple[int, bool]:
        """Returns the number of changed namespaces, and whether the time ended before all were looked at."""
        with context.database.read() as tx:
            stored = {(row.project, row.domain): row for row in namespace_resources.namespace_all(tx)}
        scopes = self._scopes(context)
        is_announced = context.snapshots.resources.version > 0
        gone = stored.keys() - set(scopes)
        changed = self._store(context, leadership, [], gone, is_shown=is_announced) if gone else 0
        texts, self.platforms = _read_all(self.templates) if scopes else TemplateTexts(()), {}
        texts_digest = texts.digest()
        self.owners = _owners(row for scope, row in stored.items() if scope not in gone)
        rows: list[NewNamespaceRow] = []
        is_shown = False
        inputs = (*versions, texts_digest)
        if inputs != self.looked_inputs:
            self.looked_at = set()
        self.looked_inputs = ()  # after a round that fails, all are looked at again
        for scope in self._unseen(scopes):
            self.looked_at.add(scope)
            row = self._render(context, texts, texts_digest, scope, stored.get(scope))
            if row is not None:
                rows.append(row)
                is_shown |= is_announced and _is_shown(row, stored.get(scope))
            if len(rows) >= ROWS_MAX:
                changed += self._store(context, leadership, rows, (), is_shown=is_shown)
                rows, is_shown = [], False
            if context.steady_us() - began_us > ROUND_US:
                break
        left = self._unseen(scopes)
        is_shown |= not (is_announced or left) and bool(scopes)
        if rows or is_shown:
            changed += self._store(context, leadership, rows, (), is_shown=is_shown)
        self.next_scope, self.looked_inputs = (left[0], inputs) if left else (None, ())
        return changed, bool(left)

    def _unseen(self, scopes: list[Scope]) -> list[Scope]:
        """The scopes that were not looked at with the present inputs, from where the last round stopped."""
        start = bisect_left(scopes, self.next_scope) if self.next_scope is not None else 0
        return [scope for scope in (*scopes[start:], *scopes[:start]) if scope not in self.looked_at]

    def _scopes(self, context: Context) -> list[Scope]:
        """All active projects in all domains; none: this server has no templates."""
        if self.templates.folder is None:
            return []
        projects = context.snapshots.access.projects
        domains = context.snapshots.policy.platform.domains
        return sorted((name, domain) for name in projects if not projects[name].is_archived for domain in domains)

    def _render(
        self, context: Context, texts: TemplateTexts, texts_digest: str, scope: Scope, stored: NamespaceRow | None
    ) -> NewNamespaceRow | None:
        """Return the row to store; none: its inputs did not change."""
        project, domain = scope
        if domain not in self.platforms:
            self.platforms[domain] = platform_values(self.templates, domain)
        try:
            values = scope_values(
                context.snapshots.policy, self.templates, self.platforms[domain], project=project, domain=domain
            )
        except ValueError as exc:
            mistake, namespace = str(exc), stored.namespace if stored else ""
            is_known = stored is not None and stored.mistake == mistake
            return None if is_known else NewNamespaceRow(project, domain, namespace, "", None, None, mistake)
        owner = self.owners.setdefault(values.namespace, scope)
        if owner != scope and is_scope_named(self.templates.namespace):
            mistake = f"the namespace {values.namespace} is that of {owner[0]} in {owner[1]}: choose another name"
            is_known = stored is not None and (stored.inputs, stored.mistake) == (TAKEN, mistake)
            return None if is_known else NewNamespaceRow(project, domain, values.namespace, TAKEN, "", "", mistake)
        inputs = values.digest(texts_digest)
        if stored is not None and stored.inputs == inputs:
            return None
        return _rendered_row(texts, values, scope, inputs)

    def _store(
        self,
        context: Context,
        leadership: Leadership,
        rows: list[NewNamespaceRow],
        gone: set[Scope] | tuple[()],
        *,
        is_shown: bool,
    ) -> int:
        def apply(batch: Batch) -> int:
            if is_shown:
                bump_version(batch, Topic.RESOURCES)
            namespace_rows.namespace_put(batch.tx, rows, at_us=batch.now_us)
            namespace_rows.namespace_delete(batch.tx, gone)
            return len(rows) + len(gone)

        return leadership.commit(context, apply)


def _owners(rows: Iterable[NamespaceRow]) -> dict[str, Scope]:
    """The scope of each namespace: one that has objects stays, so that a new project takes no namespace away."""
    owners: dict[str, Scope] = {}
    for row in sorted(rows, key=lambda row: (not row.digest, row.project, row.domain)):
        if row.namespace and row.inputs != TAKEN:
            owners.setdefault(row.namespace, (row.project, row.domain))
    return owners


def _rendered_row(texts: TemplateTexts, values: ScopeValues, scope: Scope, inputs: str) -> NewNamespaceRow:
    files, mistakes = fill_templates(texts, values)
    objects, wrong = ([], []) if mistakes else read_objects(files, namespace=values.namespace)
    mistakes += wrong
    if mistakes:
        more = f"; and {len(mistakes) - MISTAKES_SHOWN} more" if len(mistakes) > MISTAKES_SHOWN else ""
        mistake = "; ".join(mistakes[:MISTAKES_SHOWN])[:MISTAKE_CHARS_MAX] + more
        return NewNamespaceRow(*scope, values.namespace, inputs, None, None, mistake)
    body = msgspec.json.encode(objects)
    digest = hashlib.sha256(body).hexdigest()[:DIGEST_CHARS]
    return NewNamespaceRow(*scope, values.namespace, inputs, digest, body.decode(), "")


def _is_shown(row: NewNamespaceRow, stored: NamespaceRow | None) -> bool:
    """Whether agents must learn of it: not if other inputs gave the same objects."""
    if stored is None:
        return True
    is_same_body = row.digest is None or row.digest == stored.digest
    return not (is_same_body and row.mistake == stored.mistake and row.namespace == stored.namespace)


def _read_all(templates: ResourceTemplates) -> TemplateTexts:
    """Read the templates. A folder that cannot be read, or is empty, is a mistake of every scope."""
    try:
        texts = read_templates(templates.folder)
    except BadRequest as exc:
        return TemplateTexts((), (exc.detail,))
    if not texts.texts and not texts.mistakes:
        return TemplateTexts((), (f"the folder {templates.folder} has no templates",))
    return texts
