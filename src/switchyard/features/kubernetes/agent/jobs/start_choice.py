"""Which pod of each task may start. Pure; start_gates.py records the choice and lifts the gates.

Kubernetes may make two pods for one task: if the API server is killed after it stored a pod and before it answered, the
Job controller makes another pod. Both are born with the agent's scheduling gate, and only one of them loses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from switchyard.features.kubernetes.agent.namespaces.objects import PodObject
from switchyard.features.kubernetes.agent.pods.pod_facts import PodFacts, is_held, seconds


def choose_starts(
    pods: Sequence[PodObject],
    gone: Sequence[PodObject],
    starts: Mapping[int, str],
    *,
    never_ran: Collection[str] = (),
) -> dict[int, PodObject]:
    """Return the pods whose gates are to be lifted, by completion index. `starts`: the uids that the record has.

    The record decides: the pod that it names is lifted, again if need be, and no other one. Another pod takes its place
    only if it is certain that the recorded pod never ran (`never_ran`). Without a record, a pod that has no gate is the
    one that started, and nothing is lifted. Else the oldest pod is chosen, which the Job controller removes last.
    """
    gated_pods: dict[int, list[PodObject]] = {}
    for pod in pods:
        if is_held(pod) and pod.metadata.deletion_timestamp is None and pod.metadata.uid not in never_ran:
            gated_pods.setdefault(start_index(pod), []).append(pod)
    free = {start_index(pod) for pod in (*pods, *gone) if not is_held(pod) and pod.metadata.uid not in never_ran}
    pods_to_start: dict[int, PodObject] = {}
    for index, candidates in gated_pods.items():
        recorded = starts.get(index, "")
        if recorded and recorded not in never_ran:
            pods_to_start.update((index, pod) for pod in candidates if pod.metadata.uid == recorded)
        elif index not in free:
            pods_to_start[index] = min(candidates, key=_age_key)
    return pods_to_start


def without_surplus(pods: Sequence[PodObject], others: Sequence[PodObject] = ()) -> list[PodObject]:
    """Leave out pods that the agent never let start, where another pod of the same task did.

    They are no part of the attempt: the Job controller removes them. `others`: further pods of the same Job.
    """
    free = {start_index(pod) for pod in (*pods, *others) if not is_held(pod)}
    return [pod for pod in pods if not is_held(pod) or start_index(pod) not in free]


def double_start_note(pods: Sequence[PodObject]) -> str:
    """Say that the command of one task ran in several pods; empty: it did not. `pods`: also those that are gone."""
    names: dict[int, list[str]] = {}
    for pod in pods:
        if PodFacts(pod).has_begun:
            names.setdefault(start_index(pod), []).append(pod.metadata.name)
    most = max(names.values(), key=len, default=[])
    if len(most) < 2:
        return ""
    return f"Kubernetes made {len(most)} pods for it, and its command ran in each: {', '.join(sorted(most))}"


def start_index(pod: PodObject) -> int:
    """The key of a pod in the record: its completion index; 0 if its Job has one pod."""
    return pod.index or 0


def _age_key(pod: PodObject) -> tuple[float, str]:
    return seconds(pod.metadata.creation_timestamp) or 0.0, pod.metadata.name
