"""The doctor's checks of a Kubernetes cluster: the way to it, its clock, rights, nodes, namespaces and quotas.

Each right is asked by a SelfSubjectAccessReview. A missing one is told with the rule to add. Nothing is changed.

This machine's clock decides whether the API server's certificate is valid. Tokens and client certificates are judged by
the API server's own clock, and the agent goes by it for the times of jobs.
"""

from __future__ import annotations

import email.utils
import http.client
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from switchyard.agent.feature import Finding
from switchyard.errors import YardError
from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal
from switchyard.features.kubernetes.agent.api.connection import ApiAccess, ClusterConnection
from switchyard.features.kubernetes.agent.api.rights import (
    CLUSTER_RIGHTS,
    NAMESPACE_RIGHTS,
    REVIEWS_PATH,
    WATCH_RIGHTS,
    Right,
    missing_part,
    review_body,
    rule_text,
)
from switchyard.features.kubernetes.agent.jobs.kueue import object_reader, queue_problem
from switchyard.features.kubernetes.agent.kubernetes_site import VARIABLE, KubernetesSite, PodSecurity
from switchyard.features.kubernetes.agent.namespaces.site_access import connection_of
from switchyard.model.jobspec.quantity import parse_kubernetes

VERSION_MIN = (1, 29)  # the oldest in which Jobs have all fields that the agent uses, without a feature gate
NAMESPACES_MAX = 10  # looked at one by one
ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
# Pod Security Standards, from the least strict one.
LEVELS = (PodSecurity.PRIVILEGED, PodSecurity.BASELINE, PodSecurity.RESTRICTED)
JOBS_ROLE_FILE = "deploy/kubernetes/jobs-role.yaml"
NODES_ROLE_FILE = "deploy/kubernetes/nodes-cluster-role.yaml"
WATCH_ROLE_FILE = "deploy/kubernetes/namespaces-cluster-role.yaml"
CALL_S_MAX = 10.0  # for one call
SKEW_S_MAX = 5.0  # a larger skew is told: machines with an NTP service differ by far less
NOT_YET_VALID, EXPIRED = 9, 10  # X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL
SET_CLOCKS = "Set the clocks: run an NTP service on both machines."
VERSION_BYTES_MAX = 1024 * 1024


def check_kubernetes(
    site: KubernetesSite, environment: Mapping[str, str], *, namespaces: Sequence[str] = ()
) -> list[Finding]:
    """All checks, in the order of their dependencies. `namespaces`: to look at; empty: those that the site names."""
    connection = connection_of(site, environment)
    with closing(KubernetesApi(connection, timeout_s=CALL_S_MAX)) as api:
        findings = []
        for finding in _check_reached(connection, api):
            findings.append(finding)
            if finding.is_ok is False:
                return findings
        try:
            findings += _check_cluster(api, site)
            names = list(namespaces) or _namespaces_of(api, site)
            if not names:
                findings.append(_no_namespace(site))
            for name in names[:NAMESPACES_MAX]:
                findings += _check_namespace(api, site, name)
        except YardError as exc:
            findings.append(Finding("kubernetes", False, exc.detail, exc.next_step))
        return findings


def _check_reached(connection: ClusterConnection, api: KubernetesApi) -> Iterator[Finding]:
    """Check the address, the certificate, the credential, the version and the clock."""
    begun = time.time()
    try:
        access = connection.access()
        version, date = _ask_version(access, access.tls, bearer=access.bearer)
        ended = time.time()
        # /version needs no credential: the first review proves that it is accepted.
        _is_allowed(api, CLUSTER_RIGHTS[0], "list", "")
    except YardError as exc:
        yield Finding("kubernetes", False, exc.detail, exc.next_step)
        return
    except ssl.SSLCertVerificationError as exc:
        yield certificate_finding(access, exc)
        return
    except (OSError, http.client.HTTPException) as exc:
        advice = "Check the address, the certificate and the firewall between this machine and the API server."
        yield Finding("kubernetes", False, f"{access.address.url}: {exc}", advice)
        return
    text = str(version.get("gitVersion", "of an unknown version"))
    detail = f"{access.address.url} is Kubernetes {text}, credential of {access.source}"
    numbers = re.match(r"v?(\d+)\.(\d+)", text)
    is_new = numbers is not None and (int(numbers[1]), int(numbers[2])) >= VERSION_MIN
    oldest = ".".join(map(str, VERSION_MIN))
    yield Finding("kubernetes", is_new, detail, "" if is_new else f"The agent needs Kubernetes {oldest} or newer.")
    if date is not None:
        yield clock_finding(date, begun, ended)


def _check_cluster(api: KubernetesApi, site: KubernetesSite) -> Iterator[Finding]:
    """Check the rights of the cluster, the nodes and the priority classes."""
    yield from _check_rights(api, CLUSTER_RIGHTS, "", where=f"a ClusterRole ({NODES_ROLE_FILE})")
    if VARIABLE.search(site.namespace):
        yield from _check_rights(api, WATCH_RIGHTS, "", where=f"a ClusterRole ({WATCH_ROLE_FILE})")
    if _is_allowed(api, CLUSTER_RIGHTS[0], "list", ""):
        nodes = api.list_all("/api/v1/nodes").items
        ready = sum(_is_ready(msgspec.json.decode(node, type=dict[str, Any])) for node in nodes)
        advice = "" if ready else "Look at `kubectl get nodes`: no node takes pods."
        yield Finding("kubernetes-nodes", ready > 0, f"{len(nodes)} nodes, {ready} ready", advice)
    for wanted in site.priority_classes:
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{wanted.name}"
        yield _check_named(
            api,
            "kubernetes-priority",
            what=f"PriorityClass {wanted.name}",
            path=path,
            why="Without it, Jobs get no pod.",
        )


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    is_open = not (node.get("spec") or {}).get("unschedulable")
    return is_open and any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _check_rights(api: KubernetesApi, rights: Sequence[Right], namespace: str, *, where: str) -> Iterator[Finding]:
    missing = [
        missing_part(right, verbs)
        for right in rights
        if (verbs := [verb for verb in right.verbs if not _is_allowed(api, right, verb, namespace)])
    ]
    place = f" in {namespace}" if namespace else " in the whole cluster"
    if not missing:
        resources = ", ".join(right.resource for right in rights)
        yield Finding("kubernetes-rights", True, f"the agent has its rights on {resources}{place}")
    for right in missing:
        yield Finding(
            "kubernetes-rights",
            False if right.is_required else None,
            f"the agent may not {', '.join(right.verbs)} {right.resource}{place} ({right.purpose})",
            f"Add this rule to {where}: {rule_text(right)}",
        )


def _is_allowed(api: KubernetesApi, right: Right, verb: str, namespace: str) -> bool:
    answer = api.create(REVIEWS_PATH, review_body(right, verb, namespace))
    return bool((answer.get("status") or {}).get("allowed"))


def _namespaces_of(api: KubernetesApi, site: KubernetesSite) -> list[str]:
    """The namespaces of jobs: the one that the site names, or those that are there and match its pattern."""
    if not VARIABLE.search(site.namespace):
        return [site.namespace]
    pattern = _pattern_of(site)
    try:
        listed = api.list_all("/api/v1/namespaces").items
    except ApiRefusal:
        return []
    names = (msgspec.json.decode(item, type=dict[str, Any])["metadata"]["name"] for item in listed)
    return sorted(name for name in names if pattern.fullmatch(name) and not name.startswith("kube-"))


def project_of(site: KubernetesSite, namespace: str) -> tuple[str, str] | None:
    """A project and a domain whose jobs run in this namespace; None: there are none."""
    match = _pattern_of(site).fullmatch(namespace)
    if match is None:
        return None
    values = match.groupdict()
    return values.get("project") or "default", values.get("domain") or "development"


def _pattern_of(site: KubernetesSite) -> re.Pattern[str]:
    """Matches the namespaces of jobs, with `project` and `domain` as groups."""
    texts = VARIABLE.split(site.namespace)  # text, name, text, name, …, text
    words, seen = [re.escape(texts[0])], set[str]()
    for name, text in zip(texts[1::2], texts[2::2], strict=True):
        words += [f"(?P={name})" if name in seen else f"(?P<{name}>[a-z0-9-]+)", re.escape(text)]
        seen.add(name)
    return re.compile("".join(words))


def _no_namespace(site: KubernetesSite) -> Finding:
    return Finding(
        "kubernetes-namespace",
        None,
        f"no namespace {site.namespace} is there yet, or the agent may not list namespaces",
        "Name one with --namespace to check the rights in it.",
    )


def _check_namespace(api: KubernetesApi, site: KubernetesSite, name: str) -> Iterator[Finding]:
    path = f"/api/v1/namespaces/{name}"
    try:
        found = api.get(path)
    except ApiRefusal as exc:
        if exc.is_absent:
            advice = f"Make it: `kubectl create namespace {name}`, or let the agent apply your cluster resources."
            yield Finding("kubernetes-namespace", False, f"there is no namespace {name}", advice)
            return
        yield Finding("kubernetes-namespace", None, f"whether there is a namespace {name} is not known: {exc.message}")
    else:
        yield _namespace_phase(name, found)
        yield _check_admission(site, name, found)
    yield from _check_rights(api, NAMESPACE_RIGHTS, name, where=f"the Role of {name} ({JOBS_ROLE_FILE})")
    if site.service_account:
        account = f"{path}/serviceaccounts/{site.service_account}"
        what = f"ServiceAccount {site.service_account} in {name}"
        yield _check_named(api, "kubernetes-account", what=what, path=account, why="Without it, Jobs get no pod.")
    yield from _check_quotas(api, name)
    if site.kueue:
        problem = queue_problem(object_reader(api), queue=site.queue, namespace=name)
        detail = problem or f"Jobs of {name} wait in queues of Kueue"
        advice = "Install Kueue and make the LocalQueue, or set `kueue: false`." if problem else ""
        yield Finding("kubernetes-kueue", not problem, detail, advice)


def _namespace_phase(name: str, found: Mapping[str, Any]) -> Finding:
    phase = str((found.get("status") or {}).get("phase") or "")
    if phase == "Terminating":
        advice = "Wait until it is gone, then make it again; until then no job can be created in it."
        return Finding("kubernetes-namespace", False, f"namespace {name} is being deleted", advice)
    return Finding("kubernetes-namespace", True, f"namespace {name} is there")


def _check_admission(site: KubernetesSite, name: str, found: Mapping[str, Any]) -> Finding:
    """Compare the Pod Security level that the namespace enforces with the one of the pods of jobs."""
    labels = (found.get("metadata") or {}).get("labels") or {}
    enforced = next((level for level in LEVELS if level.value == labels.get(ENFORCE_LABEL)), PodSecurity.PRIVILEGED)
    detail = f"{name} enforces the Pod Security level {enforced.value}; pods of jobs are {site.security.value}"
    if LEVELS.index(site.security) >= LEVELS.index(enforced):
        return Finding("kubernetes-admission", True, detail)
    advice = (
        f"Kubernetes would refuse every pod. Write `kubernetes: {{security: {enforced.value}}}` into the site file, or "
        f"change the label {ENFORCE_LABEL} of the namespace."
    )
    return Finding("kubernetes-admission", False, detail, advice)


def _check_quotas(api: KubernetesApi, namespace: str) -> Iterator[Finding]:
    try:
        listed = api.list_all(f"/api/v1/namespaces/{namespace}/resourcequotas").items
    except ApiRefusal:
        return  # told among the rights
    for item in listed:
        quota = msgspec.json.decode(item, type=dict[str, Any])
        status, name = quota.get("status") or {}, quota["metadata"]["name"]
        hard, used = status.get("hard") or {}, status.get("used") or {}
        full = sorted(key for key in hard if _is_used_up(used.get(key, "0"), hard[key]))
        amounts = ", ".join(f"{key} {used.get(key, '0')} of {hard[key]}" for key in sorted(hard)) or "no bounds"
        yield Finding(
            "kubernetes-quota",
            not full,
            f"quota {name} of {namespace}: {amounts}",
            f"Jobs wait until {', '.join(full)} is free: raise the quota, or end pods." if full else "",
        )


def _is_used_up(used: str, hard: str) -> bool:
    try:
        return parse_kubernetes(used) >= parse_kubernetes(hard)
    except ValueError:  # a form of quantity that is not read here
        return used == hard


def _check_named(api: KubernetesApi, check: str, what: str, path: str, why: str) -> Finding:
    """Whether an object that the site file names is there."""
    try:
        api.get(path)
    except ApiRefusal as exc:
        if exc.is_absent:
            return Finding(check, False, f"there is no {what}", f"{why} Make it, or correct the site file.")
        return Finding(check, None, f"whether there is a {what} is not known: {exc.message}")
    return Finding(check, True, f"{what} is there")


def clock_finding(date: float, begun: float, ended: float) -> Finding:
    """`date`: the API server's time in an answer to a request that lasted from `begun` to `ended` by this clock."""
    skew_s, is_right = _skew(date, begun, ended)
    means = (
        "By this clock, a new certificate of the API server is not valid yet."
        if skew_s > 0
        else "By this clock, the API server's certificate expires before its time."
    )
    advice = "" if is_right else f"{SET_CLOCKS} {means} Tokens go by the API server's clock."
    return Finding("kubernetes-clock", is_right, f"this clock is {_skew_words(skew_s)}", advice)


def certificate_finding(access: ApiAccess, exc: ssl.SSLCertVerificationError) -> Finding:
    """Why the API server's certificate is not accepted: this clock, or the certificate itself."""
    url = access.address.url
    if exc.verify_code not in (NOT_YET_VALID, EXPIRED):
        advice = "Check the address, the certificate and the firewall between this machine and the API server."
        return Finding("kubernetes", False, f"{url}: {exc}", advice)
    what = "is not valid yet" if exc.verify_code == NOT_YET_VALID else "has expired"
    begun = time.time()
    date = _unverified_date(access)
    skew_s, is_right = _skew(date, begun, time.time()) if date is not None else (0.0, True)
    if is_right or (skew_s > 0) != (exc.verify_code == NOT_YET_VALID):
        return Finding("kubernetes", False, f"{url}: its certificate {what}", "Renew the API server's certificate.")
    detail = f"{url}: this clock is {_skew_words(skew_s)}, and by this clock the server's certificate {what}"
    return Finding("kubernetes-clock", False, detail, f"{SET_CLOCKS} Until then the agent cannot reach the cluster.")


def _skew(date: float, begun: float, ended: float) -> tuple[float, bool]:
    """How far this clock is behind, and whether that is little. The header Date has whole seconds."""
    skew_s = date - (begun + ended) / 2
    return skew_s, abs(skew_s) - (ended - begun) / 2 - 1 <= SKEW_S_MAX


def _skew_words(skew_s: float) -> str:
    return f"{abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead of'} the API server's"


def _unverified_date(access: ApiAccess) -> float | None:
    """The time of a server whose certificate is not accepted. It gets no credential, and decides only some words."""
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    try:
        return _ask_version(access, tls, bearer="")[1]
    except (OSError, http.client.HTTPException):
        return None


def _ask_version(access: ApiAccess, tls: ssl.SSLContext | None, *, bearer: str) -> tuple[dict[str, Any], float | None]:
    """The answer of /version, and the server's time from its header Date."""
    address = access.address
    with closing(http.client.HTTPConnection(address.host, address.port, timeout=CALL_S_MAX)) as line:
        line.connect()
        assert line.sock is not None
        if tls is not None:
            line.sock = tls.wrap_socket(line.sock, server_hostname=access.tls_name)
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        line.request("GET", f"{address.path}/version", headers=headers)
        answer = line.getresponse()
        body, date = answer.read(VERSION_BYTES_MAX), answer.headers.get("Date")
    try:
        version = msgspec.json.decode(body, type=dict[str, Any]) if answer.status == http.client.OK else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        version = {}
    return version, _timestamp(date)


def _timestamp(date: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
