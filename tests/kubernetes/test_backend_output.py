"""Output of jobs on a real cluster: whole and live, also after restarts and for strange bytes."""

from __future__ import annotations

import pytest

from switchyard.agent.backends import marker_of
from switchyard.model.job.lifecycle import ObservedState
from tests.kubernetes.builders import KubernetesAgent, MakeAgent, a_job, pods_of, runs, waits_for
from tests.processes import PATIENCE_S, until

pytestmark = pytest.mark.kubernetes


def output_of(agent: KubernetesAgent, script: str) -> bytes:
    """The output of a job that runs a script to its end."""
    lease = a_job(agent.folder, script)
    agent.journal.take([lease])
    agent.until(agent.ends, "the job ends")
    assert agent.ends()[0].seen is ObservedState.SUCCEEDED, agent.ends()[0]
    return read(agent, marker_of(lease).lower())


def read(agent: KubernetesAgent, native_id: str) -> bytes:
    piece = agent.backend.output(native_id, "stdout", offset=0, size=2**30)
    assert piece.total == len(piece.data)
    return piece.data


def tail(agent: KubernetesAgent, native_id: str) -> bytes:
    """The last bytes of an output that still grows."""
    total = agent.backend.output(native_id, "stdout", offset=0, size=0).total
    return agent.backend.output(native_id, "stdout", offset=max(0, total - 100), size=100).data


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("true", b""),
        ("printf 'no newline'", b"no newline"),
        ("printf '\\n\\n  a  \\n'", b"\n\n  a  \n"),
        ("printf 'a\\000b\\377\\n'", b"a\0b\xff\n"),
        ("printf 'a\\rb\\r'", b"a\rb\r"),  # containerd takes a carriage return off the end of a line
        ("head -c 1048576 /dev/zero | tr '\\0' x; echo; echo end", b"x" * 2**20 + b"\nend\n"),
        (
            "i=0; while test $i -lt 2000; do echo line $i; i=$((i+1)); done",
            b"".join(b"line %d\n" % i for i in range(2000)),
        ),
    ],
    ids=["nothing", "no-newline", "blank", "binary", "carriage-return", "a-megabyte", "many-lines"],
)
def test_output_of_a_job_that_ends_at_once_is_whole(agent: KubernetesAgent, script: str, expected: bytes) -> None:
    assert output_of(agent, script) == expected


def test_output_is_seen_while_the_job_runs_and_goes_on_after_a_restart(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, f"echo one; echo two; printf part; {waits_for(agent)}; echo -end; echo three")
    name = marker_of(lease).lower()
    agent.journal.take([lease])
    agent.until(lambda: read(agent, name).startswith(b"one\ntwo\n"), "the first output is there")
    assert not agent.ends()
    agent.kill()
    agent.start()
    agent.until(lambda: read(agent, name).startswith(b"one\ntwo\n"), "it is still there")
    (agent.folder / "go").touch()
    agent.until(agent.ends, "the job ends")
    assert read(agent, name) == b"one\ntwo\npart-end\nthree\n"


def test_output_of_a_job_that_ended_while_the_agent_was_away(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, f"echo one; {waits_for(agent)}; echo two")
    agent.journal.take([lease])
    agent.until(lambda: runs(agent.folder), "it runs")
    agent.kill()
    (agent.folder / "go").touch()
    until(lambda: agent.jobs()[0]["status"].get("succeeded"), PATIENCE_S, "it has ended")
    agent.start()
    agent.until(agent.ends, "the agent knows")
    assert read(agent, marker_of(lease).lower()) == b"one\ntwo\n"


def test_of_much_output_the_beginning_and_the_end_are_kept(make_agent: MakeAgent) -> None:
    agent = make_agent(kubernetes={"output_max": "1MiB"})
    text = "".join(f"{number} " for number in range(400_000))
    whole = "\n".join(text[at : at + 1000] for at in range(0, len(text), 1000)).encode()
    # Long lines: a kubelet rotates its file at 10 MiB, with some 40 bytes for each line.
    lease = a_job(agent.folder, f"seq 0 399999 | tr '\\n' ' ' | fold -w 1000; {waits_for(agent)}")
    name = marker_of(lease).lower()
    agent.journal.take([lease])
    # A busy containerd may not read the pipe of a command that ends at once. It keeps the last line, which has no end.
    lines = whole.rindex(b"\n") + 1
    agent.until(lambda: agent.backend.output(name, "stdout", offset=0, size=1).total >= lines, "all lines were read")
    (agent.folder / "go").touch()
    agent.until(agent.ends, "the job ends")
    output = read(agent, name)
    assert len(output) == len(whole)
    assert output[: 2**19] == whole[: 2**19]
    assert output[-3 * 2**17 :] == whole[-3 * 2**17 :]
    [file] = (agent.folder / "kubernetes" / "output").glob("*.out")
    assert file.stat().st_blocks * 512 < 2**20 + 2**18


def test_output_that_the_kubelet_rotates_away_was_taken_before(agent: KubernetesAgent) -> None:
    """The API shows only what came after the last rotation, which a kubelet makes at 10 MiB, every 10 s."""
    size = 12_000_000
    much = f"head -c {size} /dev/zero | tr '\\0' x | fold -w 1000; echo; echo before"
    script = f"echo first; {waits_for(agent, 'followed')}; {much}; {waits_for(agent)}; echo after"
    lease = a_job(agent.folder, script)
    name = marker_of(lease).lower()
    agent.journal.take([lease])
    # A reader that is there when the kubelet rotates reads the old file to its end. One that comes later does not.
    agent.until(lambda: tail(agent, name).endswith(b"first\n"), "the agent follows it")
    (agent.folder / "followed").touch()
    agent.until(lambda: tail(agent, name).endswith(b"before\n"), "the agent has it")

    def is_rotated() -> bool:
        (pod,) = pods_of(agent)
        path = f"/api/v1/namespaces/{agent.namespace}/pods/{pod['metadata']['name']}/log?limitBytes=1000"
        return not str(agent.cluster.request("GET", path)).startswith("first")

    agent.until(is_rotated, "the kubelet has rotated the log")
    (agent.folder / "go").touch()
    agent.until(agent.ends, "the job ends")
    output = read(agent, name)
    assert output.count(b"x") == size
    assert output.endswith(b"\nbefore\nafter\n")


def test_output_stays_after_the_job_is_gone_from_the_cluster(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, "echo kept")
    agent.journal.take([lease])
    agent.until(agent.ends, "the job ends")
    agent.cluster.kubectl("delete", "job", "--all", "--namespace", agent.namespace)
    agent.run_once()
    name = marker_of(lease).lower()
    assert read(agent, name) == b"kept\n"
    assert agent.backend.status([name])[name].seen is ObservedState.SUCCEEDED
    agent.backend.forget(name)
    agent.until(lambda: not list((agent.folder / "kubernetes").rglob("yard-*")), "no file is left")
    assert read(agent, name) == b""
