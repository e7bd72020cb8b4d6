"""Refuses options of a job that are the agent's, or that have no grammar. Pure."""

from __future__ import annotations

from switchyard.model.job.job import JobSpec, native_problem

# Set by the agent: a job that changed them could hide from it or run twice.
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
    """Why a job's options cannot be given to sbatch; empty: they can, if the site allows them."""
    if problem := native_problem(spec.native):
        return f"Slurm is not told this: {problem}."
    for option in spec.native.options if spec.native else []:
        if option.partition("=")[0] in AGENT_OPTIONS:
            return f"The option {option.partition('=')[0]} is set by the agent itself."
    return ""
