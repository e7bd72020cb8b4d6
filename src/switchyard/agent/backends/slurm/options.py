"""Which of a job's own words sbatch is not told: options of the agent, and words that have no grammar. Pure."""

from __future__ import annotations

from switchyard.model.job import JobSpec
from switchyard.model.native_grammars import native_problem

# What the agent sets itself: who may change these could hide a job from it, or run one twice.
AGENT_OPTIONS = frozenset(
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


def native_options_refusal(spec: JobSpec) -> str:
    """Why a job's own words cannot be given to sbatch; empty: they can, if the site allows them."""
    if problem := native_problem(spec.native):
        return f"Slurm is not told this: {problem}."
    for option in spec.native.options if spec.native else []:
        if option.partition("=")[0] in AGENT_OPTIONS:
            return f"The option {option.partition('=')[0]} is set by the agent itself."
    return ""
