"""What no job may ask of sbatch, whatever its site allows: the agent's own options, and what Slurm cannot keep."""

from __future__ import annotations

from switchyard.agent.backends.slurm.demanded import constraint_of
from switchyard.model.job import JobSpec

# What the agent sets itself: who may change these could hide a job from it, or run one twice.
OWN = frozenset(
    {
        *(
            "--array",
            "--job-name",
            "--parsable",
            "--test-only",
            "--wait",
            "--wrap",
            "--quiet",
            "--verbose",
            "--clusters",
        ),
        *("--chdir", "--error", "--input", "--open-mode", "--output", "--export", "--export-file", "--get-user-env"),
        *("--gid", "--uid", "--requeue", "--no-requeue", "--help", "--usage", "--version"),
    }
)


def refusal(spec: JobSpec) -> str:
    """Why a job cannot be given to sbatch; empty: it can, if the site allows its options."""
    for option in spec.native.options if spec.native else []:
        if option.partition("=")[0] in OWN:
            return f"The option {option.partition('=')[0]} is set by the agent itself."
    if constraint_of(spec) is None:
        return "Its constraint cannot be said to Slurm: it knows properties of nodes, all of some or one of some."
    return ""
