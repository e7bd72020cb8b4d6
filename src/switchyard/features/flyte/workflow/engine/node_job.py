"""The job of one attempt of a task node: what it needs, runs and leaves, from the task, the node and the execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyteidl.core import security_pb2

from switchyard.features.flyte.workflow.compile.task_checks import WORDS
from switchyard.features.flyte.workflow.tasks.pod_task import container_of, is_pod_task, pod_part, set_primary_words
from switchyard.features.flyte.workflow.tasks.raw_container import (
    container_mounts,
    container_with_tokens,
    copy_script,
    is_raw_container,
)
from switchyard.features.flyte.workflow.tasks.task_command import (
    CHECKPOINT,
    CONTAINER_OUT,
    OUTPUTS,
    AttemptNames,
    task_command,
    task_environment,
)
from switchyard.features.flyte.workflow.values.uploaded_files import uploaded_paths, with_places
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import JobSpec, Limits, Resources
from switchyard.model.job.site_needs import SecretNeed, SiteNeeds, token_need
from switchyard.model.job.variable_names import copied_variables

COPY_PREFIX = "SWITCHYARD_TASK_VARIABLE_"
CLUSTER_FOLDER = "cluster-folder"  # as a prefix: the folder for data of the cluster, whichever it is
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
    container, prepare, mounts = container_of(template), "", dict[str, str]()
    out = [f"{OUTPUTS}/*.pb", f"{OUTPUTS}/*.html"]
    if not names.data_prefix:
        out.append(CHECKPOINT)  # for the next attempt
    if is_raw_container(template):
        container, prepare = container_with_tokens(container), copy_script(inputs)
        out.append(f"{CONTAINER_OUT}/*")
        mounts = container_mounts(template.container.data_config)
    overrides = node.task_node.overrides
    env = task_environment(container, names, inputs, envs)
    copies, before = copied_variables(env, prefix=COPY_PREFIX)
    placed = with_places(inputs, uploaded_paths(inputs))
    return JobSpec(
        command=task_command(container, names, placed, bundles, prepare=prepare, before=before),
        env={**env, **copies},
        image=overrides.container_image or container.image,
        resources=_resources(container, overrides, node.metadata, accelerator=_accelerator(template, overrides)),
        task_type=template.type if template.type.replace("-", "").replace("_", "").isalnum() else "default",
        files=JobFiles(tree=tree, out=out, mounts=mounts),
        site=site_needs(template, names.data_prefix),
        pod=pod_part(template),
    )


def trial_template(template: Any) -> Any:
    """The task for a trial before its inputs are known: a command that names them is left out."""
    container = container_of(template)
    words = (*container.command, *container.args, *(pair.value for pair in container.env))
    if not any("inputs." in word.lower() for word in words):
        return template
    trial = type(template)()
    trial.CopyFrom(template)
    if is_pod_task(template):
        set_primary_words(trial, ["trial"])
        return trial
    for field in ("command", "args", "env"):
        trial.container.ClearField(field)
    trial.container.args.append("trial")
    return trial


def site_needs(template: Any, data_prefix: str) -> SiteNeeds | None:
    """What a task needs of the site file of its cluster: a place for data, and secrets and tokens by name."""
    secrets = tuple(
        SecretNeed(
            key=secret.key,
            group=secret.group,
            version=secret.group_version,
            variable=secret.env_var,
            as_file=secret.mount_requirement == security_pb2.Secret.FILE,
        )
        for secret in template.security_context.secrets
    ) + tuple(token_need(token.name) for token in template.security_context.tokens)
    if not data_prefix and not secrets:
        return None
    data = "" if data_prefix == CLUSTER_FOLDER else data_prefix or None
    return SiteNeeds(data=data, secrets=secrets)


def _accelerator(template: Any, overrides: Any) -> str:
    """The type of GPU that the node asks for, in place of what the task asks for; empty: any."""
    own = overrides.extended_resources.gpu_accelerator
    return accelerator_type(own if own.device else template.extended_resources.gpu_accelerator)


def accelerator_type(accelerator: Any) -> str:
    """The device, and the slice of it: `nvidia-tesla-a100` with `1g.5gb` is `nvidia-tesla-a100-1g.5gb`."""
    size = accelerator.partition_size
    return f"{accelerator.device}-{size}" if accelerator.device and size else str(accelerator.device)


def _resources(container: Any, overrides: Any, metadata: Any, *, accelerator: str) -> Resources:
    """What the node asks for, in place of what the task asks for."""
    requests = _amounts(overrides.resources.requests) or _amounts(container.resources.requests)
    limits = _amounts(overrides.resources.limits) or _amounts(container.resources.limits)
    seconds = metadata.timeout.seconds + (metadata.timeout.nanos > 0)
    return Resources(
        cores=requests.get("cores"),
        gpus=_whole(requests.get("gpus")),
        # As in Flyte, an accelerator says which GPUs, not how many.
        gpu_type=accelerator if requests.get("gpus") or limits.get("gpus") else "",
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
