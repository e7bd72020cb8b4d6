"""Which options of sbatch are the agent's own: no job may give them, whatever its site allows. Pure."""

from __future__ import annotations

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
    """Why a job's own options cannot be given to sbatch; empty: they can, if the site allows them."""
    for option in spec.native.options if spec.native else []:
        if option.partition("=")[0] in OWN:
            return f"The option {option.partition('=')[0]} is set by the agent itself."
    return ""
