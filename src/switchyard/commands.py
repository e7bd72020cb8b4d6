"""The commands of `yard` and the module that runs each of them. Imports no command until it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from switchyard.feature import CommandRow, import_place, installed_features

FIRST_GROUPS = ("Jobs", "Clusters")  # before those that features add

# The commands of the core, by group.
COMMAND_GROUPS: dict[str, list[CommandRow]] = {
    "Jobs": [
        (
            "submit",
            "switchyard.cli.submit.submit",
            "Submit a job, an array, or thousands; --plan only shows where it would go",
        ),
        ("ls", "switchyard.cli.jobs.ls", "List jobs"),
        ("show", "switchyard.cli.jobs.show", "Show one job in full"),
        ("wait", "switchyard.cli.jobs.wait", "Wait for jobs to end; exits as the job did"),
        ("watch", "switchyard.cli.jobs.watch", "Watch jobs change, as a live table or line by line"),
        ("logs", "switchyard.cli.jobs.logs", "Print the output of a job; -f follows it"),
        ("fetch", "switchyard.cli.jobs.fetch", "Get the output files of a job"),
        ("quote", "switchyard.cli.submit.quote", "Ask the clusters when they could start a job, and for how much"),
        ("explain", "switchyard.cli.jobs.explain", "Say why a job is where it is, or what an error code means"),
        ("events", "switchyard.cli.jobs.events", "Show the events of a job, or of all jobs"),
        ("stats", "switchyard.cli.stats", "Draw where jobs went, as bars"),
        ("tasks", "switchyard.cli.jobs.tasks", "List the tasks of an array"),
        ("cancel", "switchyard.cli.jobs.cancel", "Cancel jobs, by id or by filters"),
        ("retry", "switchyard.cli.submit.retry", "Submit ended jobs again"),
        ("hold", "switchyard.cli.jobs.change_jobs:hold", "Keep jobs from being handed to a cluster"),
        ("release", "switchyard.cli.jobs.change_jobs:release", "Release held jobs"),
        ("priority", "switchyard.cli.jobs.change_jobs:priority", "Change the priority of jobs"),
    ],
    "Clusters": [
        (
            "cluster",
            "switchyard.cli.clusters.cluster",
            "List, invite, describe, cordon and remove clusters; ask what fits",
        ),
        ("loop", "switchyard.agent.command:loop", "Run the jobs of a cluster here until there are none left"),
        ("pool", "switchyard.cli.rules.pool", "List, set and remove pools, which bound where jobs may run"),
        ("queue", "switchyard.cli.rules.queue", "List, set and remove queues: limits, priorities, fair share"),
        (
            "cluster-label",
            "switchyard.cli.clusters.cluster_label",
            "List, set and remove labels, which narrow where jobs go",
        ),
        (
            "agent",
            "switchyard.agent.command",
            "Run an agent beside a cluster; also: ls, show, pause, resume, rotate, rm, doctor",
        ),
    ],
    "Rules": [
        ("get", "switchyard.cli.rules.attributes:get", "Show an attribute that is set at a scope, or all of a kind"),
        ("update", "switchyard.cli.rules.attributes:update", "Set an attribute at a scope, from a file"),
        ("delete", "switchyard.cli.rules.attributes:delete", "Remove an attribute that is set at a scope"),
        (
            "history",
            "switchyard.cli.rules.attributes:history",
            "Show who changed an attribute, when, from what to what",
        ),
        (
            "explain-policy",
            "switchyard.cli.rules.policy",
            "Show the effective rules of a project and domain, and where each is set",
        ),
        (
            "token-pool",
            "switchyard.cli.rules.token_pool",
            "List, register and bound token pools: licences and services that jobs share",
        ),
    ],
    "Access": [
        ("login", "switchyard.cli.access.login:login", "Store a token for a server"),
        ("logout", "switchyard.cli.access.login:logout", "Forget the token for a server"),
        ("usage", "switchyard.cli.rules.usage", "Show how much your stored files take, and the most they may take"),
        ("whoami", "switchyard.cli.access.login:whoami", "Show your user name, groups and grants"),
        ("user", "switchyard.cli.access.user", "Add, list, edit and remove users"),
        ("token", "switchyard.cli.access.token", "Create, list and revoke tokens"),
        ("grant", "switchyard.cli.access.grant", "Say who may view, submit, operate or administer what"),
        ("project", "switchyard.cli.access.project", "List, create, change and archive projects"),
        ("audit", "switchyard.cli.rules.audit", "Show who changed what"),
    ],
    "Server": [
        ("server", "switchyard.server.commands.command", "Run a server"),
        ("db", "switchyard.server.commands.db_command", "Upgrade, check, back up and restore the database"),
        ("completion", "switchyard.cli.terminal.completion", "Print the completion script of bash, zsh or fish"),
        ("schema", "switchyard.cli.schema", "Print the JSON Schema of a job file, for editors"),
        ("version", "switchyard.cli.version", "Show the versions of this program and of the server"),
    ],
}
# These verbs of `yard agent` ask the server, those of features do what they say. Else it is the agent's own program.
AGENT_VERBS = dict.fromkeys(("ls", "show", "pause", "resume", "rotate", "rm"), "switchyard.cli.clusters.agent")


def find_command(words: Sequence[str]) -> str | None:
    """Return the place of the command that these words begin with, or None if there is none."""
    if words[0] == "agent" and len(words) > 1 and not words[1].startswith("-"):
        verb = AGENT_VERBS.get(words[1]) or all_agent_verbs().get(words[1])
        if verb is not None:
            return verb
    # To look for features costs milliseconds, which commands of the core do not pay.
    return _places(COMMAND_GROUPS).get(words[0]) or _places(all_commands()).get(words[0])


def all_agent_verbs() -> dict[str, str]:
    """The verbs of `yard agent` that are commands of their own: the core's and those of features."""
    return AGENT_VERBS | {
        verb: place for feature in installed_features() for verb, place in feature.agent_verbs.items()
    }


def all_commands() -> dict[str, list[CommandRow]]:
    """The commands of the core and of features, by group. A new group of a feature stands after those of jobs."""
    groups = {group: list(rows) for group, rows in COMMAND_GROUPS.items()}
    for feature in installed_features():
        for group, rows in feature.commands.items():
            groups.setdefault(group, []).extend(rows)
    order = [*FIRST_GROUPS, *(group for group in groups if group not in COMMAND_GROUPS), *COMMAND_GROUPS]
    return {group: groups[group] for group in dict.fromkeys(order)}


def _places(groups: Mapping[str, Sequence[CommandRow]]) -> dict[str, str]:
    return {name: place for rows in groups.values() for name, place, _ in rows}


def import_command(place: str) -> Callable[[list[str]], int]:
    """Import the function at `module` or `module:function`."""
    command: Callable[[list[str]], int] = import_place(place)
    return command
