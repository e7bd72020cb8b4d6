"""The audit log."""

from __future__ import annotations

from switchyard.model.wire.api import AuditEntry, Page
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import ID_CURSOR, LIMIT
from switchyard.service.access import users


def audit_list(call: Call) -> Page[AuditEntry]:
    return users.audit_list(call.context, call.actor, before=call.id_cursor, limit=call.limit)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/audit", "The audit log", Page[AuditEntry], audit_list, query=(LIMIT, ID_CURSOR)),
)
