"""The job of one attempt of a task node: what it needs, runs and leaves, from the task, the node and the execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.model.files import JobFiles
from switchyard.model.job import JobSpec, Limits, Resources
from switchyard.workflow.task_checks import WORDS
from switchyard.workflow.task_command import OUTPUTS, AttemptNames, task_command, task_environment

# Words of Flyte's resources whose amounts a job has under another name; storage is none of them.
_JOB_WORDS = {"cpu": "cores", "gpu": "gpus", "memory": "memory", "ephemeral_storage": "ephemeral_storage"}


def node_job_spec(
    template: Any,
    node: Any,
    names: AttemptNames,
    *,
    inputs: Any,
    envs: Mapping[str, str],
    bundles: Mapping[str, str],
    tree: str,
) -> JobSpec:
    """`bundles`: paths of code bundles in the job's folder. `tree`: the files that the job brings along."""
    container = template.container
    overrides = node.task_node.overrides
    return JobSpec(
        command=task_command(container, names, inputs, bundles),
        env=task_environment(container, names, inputs, envs),
        image=overrides.container_image or container.image,
        resources=_resources(container, overrides, node.metadata),
        task_type=template.type if template.type.replace("-", "").replace("_", "").isalnum() else "default",
        files=JobFiles(tree=tree, out=[f"{OUTPUTS}/*.pb", f"{OUTPUTS}/*.html"]),
    )


def _resources(container: Any, overrides: Any, metadata: Any) -> Resources:
    """What the node asks for, in place of what the task asks for."""
    requests = _amounts(overrides.resources.requests) or _amounts(container.resources.requests)
    limits = _amounts(overrides.resources.limits) or _amounts(container.resources.limits)
    seconds = metadata.timeout.seconds + (metadata.timeout.nanos > 0)
    return Resources(
        cores=requests.get("cores"),
        gpus=_whole(requests.get("gpus")),
        memory=requests.get("memory"),
        ephemeral_storage=requests.get("ephemeral_storage"),
        limits=Limits(
            cores=limits.get("cores"),
            gpus=_whole(limits.get("gpus")),
            memory=limits.get("memory"),
            ephemeral_storage=limits.get("ephemeral_storage"),
        ),
        time_limit=f"{seconds}s" if seconds else None,
    )


def _amounts(entries: Any) -> dict[str, str]:
    named = ((_JOB_WORDS.get(WORDS.get(entry.name, "")), entry.value) for entry in entries)
    return {name: value for name, value in named if name is not None}


def _whole(amount: str | None) -> int | None:
    return None if amount is None else int(amount)
