"""Submit tokens of clusters and groups, and the consent of users to them."""

from __future__ import annotations

from switchyard.model.cluster.cluster import SubmitConsent, SubmitToken
from switchyard.model.wire.api import Deleted
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import ACCOUNT
from switchyard.service.access import submit_tokens


def submit_token_create(call: Call) -> SubmitToken:
    account = call.text("account") or ""
    return submit_tokens.create_cluster_token(call.context, call.actor, call.path["cluster"], account)


def consent_give(call: Call) -> SubmitConsent:
    return submit_tokens.set_consent(call.context, call.actor, call.path["cluster"], is_given=True)


def consent_withdraw(call: Call) -> Deleted:
    submit_tokens.set_consent(call.context, call.actor, call.path["cluster"], is_given=False)
    return Deleted(call.path["cluster"])


def group_submit_token_create(call: Call) -> SubmitToken:
    account = call.text("account") or ""
    return submit_tokens.create_group_token(call.context, call.actor, call.path["group"], account)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/clusters/{cluster}/submit-token",
        "A new submit token for a cluster; the old one ends",
        SubmitToken,
        submit_token_create,
        query=(ACCOUNT,),
        status=201,
    ),
    Endpoint(
        "PUT",
        "/v1/clusters/{cluster}/submit-consent",
        "Agree that the cluster's administrators make submit tokens in your name",
        SubmitConsent,
        consent_give,
    ),
    Endpoint(
        "DELETE",
        "/v1/clusters/{cluster}/submit-consent",
        "Withdraw this consent; submit tokens in your name end",
        Deleted,
        consent_withdraw,
    ),
    Endpoint(
        "POST",
        "/v1/cluster-groups/{group}/submit-token",
        "A new submit token for all clusters of a group; the old one ends",
        SubmitToken,
        group_submit_token_create,
        query=(ACCOUNT,),
        status=201,
    ),
)
