"""The words for Slurm: what a job's needs become, the script, quotes, and the options nobody may give."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import Setting, marker_of
from switchyard.agent.backends.shared.shared_files import SharedFiles
from switchyard.agent.loop.need import cost_of
from switchyard.agent.site.site import Rates, Site, read_site, site_type
from switchyard.errors import Malformed, PolicyRefused, Unavailable
from switchyard.features.slurm.agent.backend import TRANSIENT_ERROR
from switchyard.features.slurm.agent.commands import command_lines
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner, CommandTimeout
from switchyard.features.slurm.agent.commands.option_grammars import native_options_refusal
from switchyard.features.slurm.agent.commands.script import script_of, work_folders_of
from switchyard.features.slurm.agent.nodes.cluster import find_excluded_nodes
from switchyard.features.slurm.agent.nodes.nodes import SlurmHardware, SlurmNode, graph_of
from switchyard.features.slurm.agent.nodes.quotes import read_problem, read_start_delay_s
from switchyard.features.slurm.agent.slurm_site import SlurmSite, slurm_of
from switchyard.model.job.job import JobSpec, Native, Resources
from tests.agent.builders import a_lease


def words_of(batch: dict[str, Any] | None = None, **resources: Any) -> list[str]:
    spec = JobSpec(command=["true"], resources=Resources(**resources), native=Native(**batch) if batch else None)
    return command_lines.resource_options(spec, partition="", account="")[2:]


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({}, []),
        ({"nodes": 2, "tasks": 4}, ["--nodes=2"]),
        ({"cores": 2, "memory": "3GiB"}, ["--mem-per-cpu=1536M"]),
        ({"cores": "500m", "memory": "1000000"}, ["--mem-per-cpu=1M"]),
        ({"gpus": 2}, ["--gres=gpu:2"]),
        ({"tasks": 4, "nodes": 2, "gpus": 1}, ["--nodes=2", "--gres=gpu:2"]),
        ({"tasks": 3, "nodes": 2, "gpus": 1}, ["--nodes=2", "--gpus-per-task=1"]),
        ({"tasks": 4, "gpus": 1}, ["--gpus-per-task=1"]),
        ({"ephemeral_storage": "10GiB"}, ["--tmp=10240M"]),
        ({"tasks": 4, "nodes": 2, "ephemeral_storage": "1GiB"}, ["--nodes=2", "--tmp=2048M"]),
        ({"time_limit": "90"}, ["--time=2"]),
        ({"time_limit": "1h30m"}, ["--time=90"]),
    ],
)
def test_resources_are_said_per_task(resources: dict[str, Any], words: list[str]) -> None:
    assert words_of(None, **resources) == words


def test_tasks_and_whole_cores() -> None:
    spec = JobSpec(command=["true"], resources=Resources(tasks=3, cores="1500m"))
    assert command_lines.resource_options(spec, partition="", account="") == ["--ntasks=3", "--cpus-per-task=2"]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"account": "physics"}, ["--account=physics"]),
        ({"qos": "high", "reservation": "r1"}, ["--qos=high", "--reservation=r1"]),
        ({"constraint": "a&b"}, ["--constraint=a&b"]),
        ({"licenses": ["matlab:2", "ansys@lm1"]}, ["--licenses=matlab:2,ansys@lm1"]),
        ({"exclusive": True}, ["--exclusive", "--mem=0"]),
        ({"exclusive": True, "options": ["--mem-per-cpu=1G"]}, ["--exclusive", "--mem-per-cpu=1G"]),
        ({"options": ["--nice=5", "--hint=nomultithread"]}, ["--nice=5", "--hint=nomultithread"]),
    ],
)
def test_what_a_batch_system_is_told_beside(batch: dict[str, Any], words: list[str]) -> None:
    assert words_of(batch) == words


def test_whole_nodes_with_a_part_of_their_memory() -> None:
    assert words_of({"exclusive": True}, memory="1GiB") == ["--mem-per-cpu=1024M", "--exclusive"]


def test_other_devices_and_several_types_of_gpus() -> None:
    assert words_of(None, devices=("fpga:u280",), gpus=1, gpu_type="h100") == ["--gres=gpu:h100:1,fpga:u280:1"]
    assert words_of(None, tasks=4, nodes=2, devices=("nic:2",)) == ["--nodes=2", "--gres=nic:4"]
    assert words_of(None, tasks=3, gpus=1, devices=("gpu:a100:2",)) == ["--gpus-per-task=1,a100:2"]
    with pytest.raises(PolicyRefused, match="say `nodes`"):
        words_of(None, tasks=3, devices=("nic:2",))


def test_a_type_of_gpu() -> None:
    assert words_of({"gpu_type": "a100"}, gpus=2) == ["--gres=gpu:a100:2"]
    assert words_of({"gpu_type": "a100"}, gpus=1, tasks=2) == ["--gpus-per-task=a100:1"]


def test_the_sites_partition_and_account_are_for_jobs_that_name_none() -> None:
    spec = JobSpec(command=["true"], native=Native(account="mine"))
    assert command_lines.resource_options(spec, partition="gpu", account="site")[2:] == [
        "--partition=gpu",
        "--account=mine",
    ]
    plain = JobSpec(command=["true"])
    assert command_lines.resource_options(plain, partition="", account="site")[2:] == ["--account=site"]


@pytest.mark.parametrize("option", ["--array=1-3", "--job-name=x", "--uid=0", "--output=x", "--requeue", "--wrap=x"])
def test_the_agents_own_options_are_nobody_elses(option: str) -> None:
    assert "set by the agent itself" in native_options_refusal(
        JobSpec(command=["true"], native=Native(options=[option]))
    )


def test_other_options_are_the_sites_to_allow() -> None:
    assert native_options_refusal(JobSpec(command=["true"], native=Native(options=["--nice=5"]))) == ""
    assert native_options_refusal(JobSpec(command=["true"])) == ""


def test_a_range_keeps_its_indexes_or_is_moved_down() -> None:
    lease = replace(a_lease("true"), lo=2000, hi=2999, fence=5)
    assert "--array=2000-2999" in command_lines.sbatch(lease, "n", "/f", partition="", account="", base=0)
    assert "--array=0-999" in command_lines.sbatch(lease, "n", "/f", partition="", account="", base=2000)


ODD = {"PLAIN": "x", "ODD": 'it\'s "quoted"\nand ünï $HOME `id` \\', "A-B": "not a shell's name", "EMPTY": ""}


def run_script(tmp_path: Path, lease: Any, *, base: int = 0, **env: str) -> subprocess.CompletedProcess[bytes]:
    folder = tmp_path / "it's here"
    folder.mkdir(exist_ok=True)
    script = script_of(lease, marker_of(lease), str(folder), cluster="alpha", base=base)
    given = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "77", **env}
    return subprocess.run(["/bin/sh"], input=script, env=given, capture_output=True, check=False, cwd=tmp_path)


def test_the_script_passes_arguments_and_environment_as_they_are(tmp_path: Path) -> None:
    args = ["a b", "it's", "ünï\nline", "$HOME", "--", "-x", ""]
    show = 'for a; do printf "<%s>" "$a"; done; printf "|%s|" "$ODD"; pwd'
    done = run_script(tmp_path, a_lease("sh", "-c", show, "sh", *args, env=ODD))
    expected = "".join(f"<{arg}>" for arg in args) + f"|{ODD['ODD']}|{tmp_path}/it's here/work\n"
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, expected, b"")


def test_a_variable_whose_name_no_shell_would_take(tmp_path: Path) -> None:
    done = run_script(tmp_path, a_lease("env", env=ODD))
    assert "A-B=not a shell's name" in done.stdout.decode().splitlines()


def test_the_script_tells_its_end(tmp_path: Path) -> None:
    lease = a_lease("sh", "-c", "exit 7")
    assert run_script(tmp_path, lease).returncode == 7
    assert (tmp_path / "it's here" / "exit").read_text() == "code 7\n"
    assert (tmp_path / "it's here" / "started").read_text() == "77 0  noted\n"


@pytest.mark.parametrize(
    ("text", "code", "note"),
    [
        ("exit 7", 7, "code 7"),
        ("exit 137", 137, "code 137"),
        ("kill -9 $$", -9, "signal 9"),
        ("kill -15 $$", -15, "signal 15"),
    ],
)
def test_the_script_ends_as_the_command_does(tmp_path: Path, text: str, code: int, note: str) -> None:
    done = run_script(tmp_path, a_lease("sh", "-c", text))
    assert (done.returncode, (tmp_path / "it's here" / "exit").read_text()) == (code, f"{note}\n")


def test_the_script_never_runs_twice(tmp_path: Path) -> None:
    lease = a_lease("sh", "-c", f"echo ran >> {tmp_path}/ledger")
    assert run_script(tmp_path, lease).returncode == 0
    for number in ("78", "79"):
        again = run_script(tmp_path, lease, SLURM_JOB_ID=number, SLURM_RESTART_COUNT="1")
        assert (again.returncode, (tmp_path / "ledger").read_text()) == (96, "ran\n")
        assert again.stderr == b"yard: this was started before; it does not run twice\n"
        assert (tmp_path / "it's here" / "again").read_text() == f"{number}\n"
    assert (tmp_path / "it's here" / "started").read_text() == "77 0  noted\n"


def test_of_many_starts_at_once_one_runs(tmp_path: Path) -> None:
    lease = a_lease("sh", "-c", f"echo ran >> {tmp_path}/ledger")
    with ThreadPoolExecutor(8) as pool:
        codes = [done.returncode for done in pool.map(lambda _: run_script(tmp_path, lease), range(8))]
    assert (sorted(codes), (tmp_path / "ledger").read_text()) == ([0] + [96] * 7, "ran\n")


def test_the_shell_does_all_but_the_command_itself(tmp_path: Path) -> None:
    """Each program more would be felt by a thousand tasks: here there is none but these."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("env", "true"):
        (programs / name).symlink_to(str(shutil.which(name)))
    lease = replace(a_lease("true"), lo=10, hi=19)
    for place in work_folders_of(lease, base=10):
        (tmp_path / "it's here" / place).mkdir(parents=True)
    task = {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_JOB_ID": "70"}
    done = run_script(tmp_path, lease, base=10, PATH=str(programs), **task)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "it's here" / "exit.9").exists()


def test_a_command_that_is_not_there_and_one_with_an_equals_sign(tmp_path: Path) -> None:
    assert run_script(tmp_path, a_lease("no-such-program")).returncode == 127
    assert run_script(tmp_path / "it's here", a_lease("A=B")).returncode == 127


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    done = run_script(tmp_path, a_lease("true", cwd=str(tmp_path / "nowhere")))
    assert done.returncode == 1
    assert (tmp_path / "it's here" / "exit").read_text() == "cwd\n"


def test_a_task_knows_its_index_and_its_fence(tmp_path: Path) -> None:
    text = 'echo "$SWITCHYARD_ARRAY_INDEX $SLURM_ARRAY_TASK_ID $SWITCHYARD_FENCE"'
    lease = replace(a_lease("sh", "-c", text), lo=10, hi=19, fence=100)
    moved = run_script(tmp_path, lease, base=10, SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_JOB_ID="70")
    assert moved.stdout == b"13 13 103\n"
    kept = run_script(tmp_path, lease, SLURM_ARRAY_TASK_ID="14", SLURM_ARRAY_JOB_ID="70")
    assert kept.stdout == b"14 14 104\n"
    assert (tmp_path / "it's here" / "started.14").read_text().split()[0] == "70_14"


@pytest.mark.parametrize(
    ("text", "eta_s"),
    [
        ("sbatch: Job 9 to start at 1060 using 2 processors on nodes n1 in partition main", 60),
        ("sbatch: Job 9 to start at 900 a using 2 processors", 0),
        ("sbatch: Job 9 to start at 23269568885 using 24 processors", None),
        ("sbatch: Job 6 to start at 2707-05-21T09:54:09 using 24 processors", None),
        ("sbatch: Job 6 to start at N/A", None),
        ("something else", None),
    ],
)
def test_a_quote_that_makes_sense(text: str, eta_s: int | None) -> None:
    assert read_start_delay_s(text, now_s=1000.0) == eta_s


def test_why_not() -> None:
    text = "sbatch: error: invalid partition specified: x\nallocation failure: Invalid partition name specified\n"
    assert read_problem(text) == "Invalid partition name specified"
    assert read_problem("strange words") == "strange words"


def test_cost_by_partition_and_hours() -> None:
    site = Site(rates={"main": Rates(node=1, core=0.5, gpu=2), "*": Rates(core=1)})
    spec = JobSpec(command=["true"], resources=Resources(nodes=2, tasks=4, cores=2, gpus=1, time_limit="2h"))
    assert cost_of(spec, site, queue="main") == (2 * 1 + 8 * 0.5 + 4 * 2) * 2
    assert cost_of(JobSpec(command=["true"]), site, queue="other") == 1
    assert cost_of(spec, Site(), queue="main") is None


def test_before_every_command_its_prefix() -> None:
    site = SlurmSite(prefix="ssh -p 22 login1", folder="/scratch/yard", conf="/etc/slurm/b.conf", timeout_s=5.5)
    said = CommandRunner(site, {}).words(["squeue", "--name=a b", "-O", "x:|"])
    forms = "SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0 SLURM_CONF=/etc/slurm/b.conf"
    assert said == ["ssh", "-p", "22", "login1", f"env {forms} timeout -k 2 6 squeue '--name=a b' -O 'x:|'"]
    behind = SlurmSite(prefix="timeout 9 /usr/bin/ssh login1", folder="/scratch/yard")
    assert CommandRunner(behind, {}).words(["sbatch", "--comment=a; id"])[-1].endswith(" sbatch '--comment=a; id'")
    submit = CommandRunner(SlurmSite(prefix="chroot /tree", conf="/c"), {}).words(["sbatch", "--parsable"])
    assert submit == ["chroot", "/tree", "env", "SLURM_CONF=/c", "sbatch", "--parsable"], "its environment is the job's"
    near = CommandRunner(SlurmSite(prefix="chroot /tree", bin="/opt/slurm/bin"), {}).words(["squeue", "-h"])
    assert near[:3] == ["chroot", "/tree", "env"]
    assert near[-2:] == ["/opt/slurm/bin/squeue", "-h"]


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = tmp_path / "squeue"
    script.write_text("#!/bin/sh\nsleep 100 &\nwait\n")
    script.chmod(0o755)
    caller = CommandRunner(SlurmSite(bin=str(tmp_path), timeout_s=0.3), {"PATH": os.environ["PATH"]})
    with pytest.raises(CommandTimeout, match=r"within 0\.3 s"):
        caller.call(["squeue"])


def test_what_cannot_work_is_said_at_once_and_in_words(tmp_path: Path) -> None:
    nowhere = CommandRunner(SlurmSite(conf=str(tmp_path / "slurm.conf")), {"PATH": os.environ["PATH"]})
    with pytest.raises(Unavailable, match=r"slurm\.conf is not there") as missing:
        nowhere.ask(["scontrol", "show", "config"])
    assert missing.value.next_step == "Name this cluster's slurm.conf as `conf`."
    with pytest.raises(Unavailable, match=r"scontrol failed \(1\) without a word") as silent:
        CommandRunner(SlurmSite(prefix="false"), {"PATH": os.environ["PATH"]}).ask(["scontrol", "ping"])
    assert silent.value.next_step.startswith("Try `false env ")
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable) as folder:
        SharedFiles(tmp_path / "file" / "folder")
    assert "`folder`" in folder.value.next_step


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("slurm: {prefix: ssh login1}", "folder"),
        ("slurm: {prefix: env A=b ssh login1}", "folder"),
        ('slurm: {prefix: "ssh \'x"}', "quotation"),
        ("slurm: {conf: relative/path}", "conf"),
        ("slurm: {timeout_s: 0}", "timeout_s"),
        ("slurm: {timeouts: 1}", "timeouts"),
        ("rates: {main: {core: -1}}", "core"),
        ("queue: {}", "queue"),
        ("accounts: {map: /m}\nslurm: {prefix: ssh x, folder: /f}", "accounts"),
        ("[]", "object"),
    ],
)
def test_mistakes_in_the_sites_file_are_named(tmp_path: Path, text: str, mistake: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    with pytest.raises(Malformed, match=mistake):
        read_site(file)


def test_a_site_without_a_file_and_with_one(tmp_path: Path) -> None:
    assert read_site(None) == site_type()()
    file = tmp_path / "site.yaml"
    file.write_text("slurm: {conf: /etc/slurm.conf, settle_s: 3}\nqueues: {gpu: a100}\nrates: {'*': {core: 0.1}}\n")
    assert slurm_of(read_site(file)).settle_s == 3
    with pytest.raises(Malformed, match="Cannot read"):
        read_site(tmp_path / "nothing.yaml")
    assert Setting(cluster="a", directory=tmp_path).site == Site()


@pytest.mark.parametrize(
    ("constraints", "ruled_out"),
    [
        (None, ""),
        ({}, ""),
        ({"properties": ["fast"]}, "n[2-4]"),
        ({"properties": ["^fast"]}, "n1"),
        ({"or": [{"properties": ["fast"]}, {"hostlist": ["n[3-4]"]}]}, "n2"),
        ({"not": [{"ranks": ["0-1"]}]}, "n[1-2]"),
        ({"properties": ["slow"]}, "n[1-2,4]"),
        ({"properties": ["nowhere"]}, "n[1-4]"),
    ],
)
def test_nodes_that_a_constraint_rules_out_are_named(constraints: dict[str, Any] | None, ruled_out: str) -> None:
    kinds = {1: ("fast",), 2: (), 3: ("slow",), 4: ()}  # in the graph n2 and n4 come together: they are alike
    nodes = [SlurmNode(name=f"n{i}", has=SlurmHardware(cores=4), features=kinds[i]) for i in kinds]
    graph, names = graph_of(nodes, where="here"), {node.name for node in nodes}
    demand = {"version": 1, "resources": [], "attributes": {"system": {"constraints": constraints}}}
    spec = JobSpec(["true"], demand=demand)
    assert find_excluded_nodes(spec, graph, names) == ruled_out
    words = command_lines.resource_options(spec, partition="", account="", excluded=ruled_out)
    assert words[2:] == ([f"--exclude={ruled_out}"] if ruled_out else [])
    assert find_excluded_nodes(JobSpec(["true"]), graph, names) == ""
    assert find_excluded_nodes(spec, graph, {"other"}) == ""


def test_tasks_of_one_array_are_one_word_of_a_cancel() -> None:
    assert command_lines.scancel(["7_3", "9", "7_4", "7_9", "12"]) == ["scancel", "7_[3-4,9]", "9", "12"]


@pytest.mark.parametrize(
    ("text", "is_doubtful"),
    [
        ("Batch job submission failed: Unexpected missing socket error", True),  # the controller was killed just then
        ("Batch job submission failed: Unable to contact slurm controller (send failure)", True),
        ("Batch job submission failed: Received zero length message", True),
        ("Batch job submission failed: Failed to send entire message", True),
        ("Batch job submission failed: Incompatible versions of client and server code", True),
        ("Batch job submission failed: Network is unreachable", True),
        ("Batch job submission failed: Error generating job credential", True),
        ("Batch job submission failed: Requested node configuration is not available", False),
        ("Batch job submission failed: Invalid account or account/partition combination specified", False),
        ("invalid number for --sockets-per-node", False),
        ("invalid option --network=x", False),
    ],
)
def test_an_answer_that_was_cut_off_is_no_refusal(text: str, is_doubtful: bool) -> None:
    assert bool(TRANSIENT_ERROR.search(f"sbatch: error: {text}\n")) is is_doubtful
