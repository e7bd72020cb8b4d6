"""What Slurm adds to the agent's doctor and to `discover`."""

from __future__ import annotations

from typing import Any

from switchyard.agent.feature import AgentFeature, CanaryAdvice, SystemsQuestion

# Why Slurm lets a job wait, by how its word begins, and what to do about it.
WAITS = {
    "Resources": "Nothing is wrong: the cluster is full. Try again later, or give --wait more time.",
    "Priority": "Nothing is wrong: others are before it. Try again later, or give --wait more time.",
    "Partition": "The default partition is closed or too small: see `scontrol show partition`.",
    "ReqNodeNotAvail": "Its nodes are down, drained or reserved: see `sinfo -R`.",
    "Assoc": "The account's limits are reached, or it may not run here: see `sacctmgr show assoc`.",
    "Account": "Slurm wants another account: `slurm: {account: …}` in the site's file.",
    "InvalidAccount": "Slurm does not know the account: `slurm: {account: …}` in the site's file, or sacctmgr.",
    "InvalidQOS": "Slurm does not know the quality of service: see `sacctmgr show qos`.",
    "QOS": "A limit of the quality of service is reached: see `sacctmgr show qos`.",
    "JobHeld": "The site holds new jobs: ask who runs the cluster, or `scontrol release`.",
    "Licenses": "The licences it needs are taken.",
    "BadConstraints": "No node has what it asks for.",
}


class SlurmFeature(AgentFeature):
    kind = "slurm"
    canary_advice = CanaryAdvice(
        output="Name a folder that the nodes share with this machine: `slurm: {folder: /…}` in the site's file.",
        cancel="Cancel it by hand: scancel {name}",
        silent="See whether slurmctld runs: `scontrol ping`.",
        slow="See `sinfo -R` and the node's log.",
        queued="See `squeue` for the reason.",
        waits=WAITS,
    )

    def describe_systems(self, question: SystemsQuestion) -> tuple[dict[str, Any], dict[str, str]]:
        from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
        from switchyard.features.slurm.agent.nodes.node_systems import describe_systems
        from switchyard.features.slurm.agent.slurm_site import slurm_of

        caller = CommandRunner(slurm_of(question.site), question.environment)
        return describe_systems(caller, program=list(question.program))
