"""The grammar of each word with a value on a command line of Slurm. Pure.

`build_option` is the only way to build such a word. It checks the value first, whether it comes from the job, the
server, the site or Slurm itself. An option without a grammar cannot be built, and options of the agent are not a job's.
"""

from __future__ import annotations

from switchyard.errors import PolicyRefused
from switchyard.model.cluster.native_grammars import CONSTRAINT, GPU_TYPE, LICENSE, NAME, NAMES, Grammar
from switchyard.model.job.job import JobSpec, native_problem

COUNT = Grammar(r"[0-9]{1,12}", "a whole number")
MEGABYTES = Grammar(r"[0-9]{1,18}M", "a size in megabytes")
RANGE = Grammar(r"[0-9]{1,12}-[0-9]{1,12}", "a range of indexes")
JOB = Grammar(r"[0-9]{1,12}(_[0-9]{1,12}|_\[[0-9,-]+\])?", "a job's number", 100_000)
JOBS = Grammar(r"[0-9]{1,12}(_[0-9]{1,12})?(,[0-9]{1,12}(_[0-9]{1,12})?)*", "numbers of jobs", 100_000)
MARKERS = Grammar(r"[A-Za-z0-9][A-Za-z0-9_.-]*(,[A-Za-z0-9][A-Za-z0-9_.-]*)*", "names of jobs", 100_000)
# An account or its number; with a backslash after the domain of a directory service.
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?"
USERS = Grammar(rf"{_USER}(,{_USER})*", "names of accounts", 100_000)
HOSTS = Grammar(r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*", "names of nodes", 100_000)
PATH = Grammar(r"/[^\x00-\x1f\x7f-\x9f\u2028\u2029]*", "the whole path of a file", 4400)
TEXT = Grammar(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*", "text on one line", 256)
_GPUS = rf"({GPU_TYPE.pattern}:)?[0-9]{{1,12}}"
_DEVICES = rf"[A-Za-z][A-Za-z0-9._-]*:{_GPUS}"
GPUS = Grammar(rf"{_GPUS}(,{_GPUS})*", "a number of GPUs, perhaps of a type", 2048)

GRAMMARS: dict[str, Grammar] = {
    "--account": NAME,
    "--array": RANGE,
    "--chdir": PATH,
    "--comment": TEXT,
    "--constraint": CONSTRAINT,
    "--cpus-per-task": COUNT,
    "--error": PATH,
    "--exclude": HOSTS,
    "--gpus-per-task": GPUS,
    "--gres": Grammar(rf"{_DEVICES}(,{_DEVICES})*", "devices, perhaps of a type", 2048),
    "--immediate": COUNT,
    "--job-name": MARKERS,
    "--jobs": JOBS,
    "--licenses": Grammar(rf"({LICENSE.pattern})(,{LICENSE.pattern})*", "licences with commas between them", 12_900),
    "--mem-per-cpu": MEGABYTES,
    "--name": MARKERS,
    "--nodelist": HOSTS,
    "--nodes": COUNT,
    "--ntasks": COUNT,
    "--output": PATH,
    "--partition": NAMES,
    "--qos": NAME,
    "--reservation": NAMES,
    "--starttime": Grammar(r"now-[0-9]{1,6}days", "a number of days ago"),
    "--time": COUNT,
    "--tmp": MEGABYTES,
    "--user": USERS,
}
# Set by the agent: a job that changed them could hide from it or run twice.
AGENT_OPTIONS = frozenset(
    {
        *("--array", "--job-name", "--parsable", "--test-only", "--wait", "--wrap", "--quiet", "--verbose"),
        *("--clusters", "--chdir", "--error", "--input", "--open-mode", "--output", "--export", "--export-file"),
        *("--get-user-env", "--gid", "--uid", "--requeue", "--no-requeue", "--help", "--usage", "--version"),
    }
)


def build_option(option: str, value: object) -> str:
    """`--option=value`. Raises PolicyRefused for a value outside the option's grammar."""
    text = str(value)
    if problem := GRAMMARS[option].problem(text):
        raise PolicyRefused(f"Slurm is not told {option}: {problem}.")
    return f"{option}={text}"


def check_word(grammar: Grammar, text: str) -> str:
    """Check a word without an option name: a job's number, or one of a job's further options."""
    if problem := grammar.problem(text):
        raise PolicyRefused(f"Slurm is not told this: {problem}.")
    return text


def native_options_refusal(spec: JobSpec) -> str:
    """Why a job's options cannot be given to sbatch; empty: they can, if the site allows them."""
    if problem := native_problem(spec.native):
        return f"Slurm is not told this: {problem}."
    for option in spec.native.options if spec.native else []:
        if option.partition("=")[0] in AGENT_OPTIONS:
            return f"The option {option.partition('=')[0]} is set by the agent itself."
    return ""
