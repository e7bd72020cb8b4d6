"""Token pools for callers outside: registered, claimed, renewed, given back, looked at; by CLI, SDK and HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.errors import Conflict, NoSuchPool, TimedOut
from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import RedisPools
from switchyard.model.rules.tokens import AllocationStatus, LimitedBy, ResourceConstraintsSpec, ResourceManager
from tests.acceptance.rules.pools import write
from tests.processes import PATIENCE_S, piped, until
from tests.programs import Server, call, isolated_env, off_clock, start_server, yard
from tests.redis_service import RedisServer, redis_running
from tests.services import Postgres

pytestmark = pytest.mark.xdist_group("tokens")
# A claim that names no lease has the longest one: long enough for a test on a busy machine.
MEMORY = "resourcemanager: {type: memory, resourceMaxQuota: 1000, leaseMax: 10m}\n"
REDIS = "resourcemanager: {{type: redis, resourceMaxQuota: 1000, leaseMax: {}, redis: {{hostPaths: ['{}']}}}}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with start_server(folder, extra=["--config", write(folder, MEMORY)]) as one:
        with Client(one.url) as client:
            client.register_token_pool("warm", 1)
            until(lambda: client.token_pool("warm").opens_in_s == 0, PATIENCE_S, "the pools are open")
        yield one


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as one:
        yield one


def run(server: Server, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return yard(*words, env=isolated_env(folder, url=server.url))


def post(server: Server, path: str, **body: Any) -> Any:
    return call("POST", f"{server.url}/v1/token-pools/{path}", body)


def test_the_commands(server: Server, folder: Path) -> None:
    assert run(server, folder, "token-pool", "register", "matlab", "2").returncode == 0
    assert run(server, folder, "token-pool", "register", "matlab", "2").returncode == 0
    again = run(server, folder, "token-pool", "register", "matlab", "3")
    assert (again.returncode, "another quota: 2" in again.stderr) == (6, True)
    taken = [run(server, folder, "token-pool", "allocate", "matlab", token) for token in ("a/1", "b:2", "c", "a/1")]
    assert [(each.returncode, each.stdout) for each in taken] == [
        (0, "GRANTED\n"),
        (0, "GRANTED\n"),
        (1, "EXHAUSTED pool\n"),
        (0, "GRANTED\n"),
    ]
    capped = run(server, folder, "token-pool", "allocate", "matlab", "d", "--project-cap", "0", "-o", "json")
    capped_by = json.loads(capped.stdout)
    assert (capped_by["status"], capped_by["limited_by"]) == (2, "pool")
    shown = run(server, folder, "token-pool", "ls").stdout
    assert [line.split()[:5] for line in shown.splitlines() if line.startswith("matlab")] == [
        ["matlab", "2", "2", "0", "2"]
    ]
    lower = run(server, folder, "token-pool", "set-quota", "matlab", "1")
    assert (lower.returncode, "2 are held: who holds goes on" in lower.stderr) == (0, True)
    holders = json.loads(run(server, folder, "token-pool", "holders", "matlab", "-o", "json").stdout)
    assert sorted((each["token"], each["owner"]) for each in holders) == [
        ("a/1", "local-admin"),
        ("b:2", "local-admin"),
    ]
    assert run(server, folder, "token-pool", "rm", "matlab", "--force").returncode == 6
    for token in ("a/1", "b:2"):
        assert run(server, folder, "token-pool", "release", "matlab", token).returncode == 2  # asks, and nobody answers
        done = run(server, folder, "token-pool", "release", "matlab", token, "--force")
        assert (done.returncode, done.stdout) == (0, "Given back.\n")
    never = run(server, folder, "token-pool", "release", "matlab", "never", "--force")
    assert (never.returncode, never.stdout) == (0, "It was not held.\n")
    assert "used       0" in run(server, folder, "token-pool", "show", "matlab").stdout
    assert run(server, folder, "token-pool", "rm", "matlab", "--force").returncode == 0
    assert run(server, folder, "token-pool", "show", "matlab").returncode == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("register", "new", "0"), 2, "from 1 to 1000"),
        (("register", "new", "-1"), 2, "from 1 to 1000"),
        (("register", "new", "1001"), 2, "from 1 to 1000 (resourceMaxQuota); this one is 1001"),
        (("register", "new", "many"), 2, "not a whole number"),
        (("register", "a b", "1"), 2, "not a namespace"),
        (("register", "x" * 129, "1"), 2, "not a namespace"),
        (("set-quota", "warm", "0"), 2, "from 1 to 1000"),
        (("set-quota", "nobody", "1"), 3, "no token pool 'nobody'"),
        (("allocate", "nobody", "t"), 3, "no token pool 'nobody'"),
        (("allocate", "warm", "x" * 10_240), 2, "1024"),
        (("allocate", "warm", "t", "--lease", "601s"), 2, "from 1 s to 600 s"),
        (("allocate", "warm", "t", "--project", "nobody"), 2, "no project 'nobody'"),
        (("allocate", "warm", "t", "--domain", "nowhere"), 2, "no domain 'nowhere'"),
        (("release", "nobody", "t", "--force"), 3, "no token pool 'nobody'"),
        (("holders", "nobody"), 3, "no token pool 'nobody'"),
        (("rm", "nobody", "--force"), 3, "no token pool 'nobody'"),
    ],
)
def test_bad_input_is_refused_and_says_why(
    server: Server, folder: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    # argparse takes -1 for an option unless it is told.
    done = run(server, folder, "token-pool", words[0], *(["--"] if "-1" in words else []), *words[1:])
    assert done.returncode == code, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"token": ""},
        {"token": "x" * 1025},
        {"token": "a\nb"},
        {"token": "t", "units": 0},
        {"token": "t", "units": -1},
        {"token": "t", "units": 1.5},
        {"token": "t", "lease_s": 0},
        {"token": "t", "lease_s": 10**9},
        {"token": "t", "constraints": {"project": -1}},
        {"token": "t", "constraints": {"user": 1}},
        {"token": "t", "other": 1},
    ],
    ids=lambda body: str(body)[:40],
)
def test_bodies_that_are_not_well_formed(server: Server, body: dict[str, Any]) -> None:
    assert post(server, "warm/allocate", **body).status == 400
    assert call("GET", f"{server.url}/v1/token-pools/warm").json["used"] == 0


def test_the_interface_of_plugins_over_the_server(client: Client) -> None:
    manager: ResourceManager = client.resource_manager()
    assert manager.get_id() == "memoryresourcemanager"
    manager.register_resource("plugins", 3)
    caps = ResourceConstraintsSpec(project=2, namespace=1)
    first = manager.allocate_resource("plugins", "flkgiwd13-akjdoe-0", caps)
    assert (first.status, int(first.status)) == (AllocationStatus.GRANTED, 1)
    assert manager.allocate_resource("plugins", "flkgiwd13-akjdoe-0", caps).is_granted
    second = manager.allocate_resource("plugins", "u", caps)
    assert (int(second.status), second.limited_by) == (2, LimitedBy.NAMESPACE)
    assert manager.allocate_resource("plugins", "u", caps, domain="staging").is_granted
    assert manager.allocate_resource("plugins", "v", caps, domain="production").limited_by is LimitedBy.PROJECT
    assert manager.renew_resource("plugins", "flkgiwd13-akjdoe-0")
    assert manager.release_resource("plugins", "flkgiwd13-akjdoe-0")
    assert not manager.release_resource("plugins", "flkgiwd13-akjdoe-0")
    assert not manager.renew_resource("plugins", "flkgiwd13-akjdoe-0")
    with pytest.raises(NoSuchPool):
        manager.allocate_resource("other", "t")


@pytest.mark.parametrize("way", ["server", "redis"])
def test_the_plugin_of_the_examples(way: str, server: Server, folder: Path, redis_server: RedisServer) -> None:
    if way == "redis":
        redis_server.client().flushall()
        assert RedisPools(RedisConnectionPool([redis_server.address]), quota_max=2).begin(is_first=True)
    where = ["--server", server.url, "--quota", "3"] if way == "server" else ["--redis", redis_server.address]
    if way == "server":
        call("DELETE", f"{server.url}/v1/token-pools/default_cluster")
    program = Path(__file__).parents[3] / "examples" / "token-pools" / "hive_plugin.py"
    done = subprocess.run(
        [sys.executable, str(program), *where, "--commands", "10"],
        capture_output=True,
        text=True,
        env=isolated_env(folder),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("result of SELECT") == 10
    assert "never more than" in done.stdout


def test_tokens_for_the_time_of_a_with(client: Client) -> None:
    client.register_token_pool("with", 1)
    with client.tokens("with", lease_s=5) as held:
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 7, PATIENCE_S, "more than a lease has passed")
        held.check()
        assert client.token_pool("with").used == 1
        with pytest.raises(TimedOut, match="with is exhausted"), client.tokens("with", timeout_s=0.3):
            pytest.fail("granted beyond the quota")
    assert client.token_pool("with").used == 0
    with pytest.raises(Conflict, match="ran out"):
        held.check()


def test_who_waits_gets_the_token_when_it_is_given_back(client: Client) -> None:
    client.register_token_pool("handed-on", 1)
    entered = threading.Event()

    def wait() -> None:
        with client.tokens("handed-on"):
            entered.set()

    with client.tokens("handed-on"):
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not entered.is_set()
    assert entered.wait(PATIENCE_S)
    waiter.join(PATIENCE_S)


def test_a_caller_that_dies_gives_back_by_expiry(server: Server, client: Client, folder: Path) -> None:
    client.register_token_pool("mortal", 1)
    program = (
        "import sys, time\nfrom switchyard import Client\n"
        "with Client(sys.argv[1]).tokens('mortal', lease_s=5):\n print('held', flush=True)\n time.sleep(600)\n"
    )
    with piped([sys.executable, "-c", program, server.url], env=isolated_env(folder)) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "held\n"
        assert client.token_pool("mortal").used == 1
        caller.kill()
    with client.tokens("mortal", timeout_s=PATIENCE_S):
        assert client.token_pool("mortal").used == 1


def test_a_rate_pool_grants_so_many_in_its_time(client: Client) -> None:
    manager = client.resource_manager()
    client.register_token_pool("rate", 2, per_s=1)
    began = time.monotonic()
    for number in range(5):
        with client.tokens("rate", token=f"t{number}", timeout_s=PATIENCE_S):
            pass
    assert time.monotonic() - began >= 2  # two at once, two after a second, one after another
    assert manager.allocate_resource("rate", "t5").status in (AllocationStatus.GRANTED, AllocationStatus.EXHAUSTED)


def test_a_server_that_restarts_grants_nothing_until_the_leases_it_forgot_are_over(folder: Path) -> None:
    config = write(folder, MEMORY.replace("10m", "20s"), "restart.yaml")
    with start_server(folder, name="restarted", extra=["--config", config]) as server, Client(server.url) as client:
        client.register_token_pool("a", 1)
        client.register_token_pool("untouched", 1)
        manager = client.resource_manager()
        until(lambda: client.token_pool("a").opens_in_s == 0, PATIENCE_S, "open")
        assert manager.allocate_resource("a", "t", lease_s=20).is_granted
        server.kill()
        server.restart()
        answer = post(server, "a/allocate", token="u")
        assert (answer.status, answer.json["code"]) == (503, "rebuilding")
        until(
            lambda: client.token_pool("untouched").opens_in_s == 0,
            PATIENCE_S,
            "what nobody held is open with the next term",
        )
        until(lambda: client.token_pool("a").opens_in_s == 0, PATIENCE_S, "the longest lease is over")
        assert manager.allocate_resource("a", "u").is_granted


def test_noop_grants_everything_and_says_that_nothing_is_enforced(folder: Path) -> None:
    with start_server(folder, name="noop") as server, Client(server.url) as client:
        manager = client.resource_manager()
        assert (manager.get_id(), manager.info().type) == ("noopresourcemanager", "noop")
        assert manager.allocate_resource("whatever", "t").is_granted
        client.register_token_pool("a", 1)
        assert [manager.allocate_resource("a", token).is_granted for token in "xyz"] == [True] * 3
        assert not client.token_pool("a").is_enforced
        shown = yard("token-pool", "ls", env=isolated_env(folder, url=server.url)).stdout
        assert "not enforced" in shown


def test_two_replicas_an_hour_apart_share_a_redis(folder: Path, postgres: Postgres, redis_server: RedisServer) -> None:
    redis_server.client().flushall()
    database = postgres.create_database()
    config = write(folder, REDIS.format("10m", redis_server.address), "redis.yaml")
    extra = ["--config", config]
    with (
        start_server(folder, name="here", database=database, extra=extra) as here,
        start_server(folder, name="ahead", database=database, extra=extra, env=off_clock("+1h")) as ahead,
        Client(here.url) as one,
        Client(ahead.url) as two,
    ):
        one.register_token_pool("shared", 2)
        until(lambda: two.token_pool("shared").opens_in_s == 0, PATIENCE_S, "the pool is open, also there")
        assert one.resource_manager().allocate_resource("shared", "a").is_granted
        assert two.resource_manager().allocate_resource("shared", "b").is_granted
        for client in (one, two):
            assert not client.resource_manager().allocate_resource("shared", "c").is_granted
            # By Redis's clock, so an hour more or less changes nothing.
            assert all(0 < (holder.expires_in_s or 0) <= 600 for holder in client.token_holders("shared"))
        for client, token in ((one, "a"), (two, "b")):
            client.resource_manager().release_resource("shared", token)
            assert client.resource_manager().allocate_resource("shared", token, lease_s=2).is_granted
        until(lambda: two.token_pool("shared").used == 0, PATIENCE_S, "both leases are over")
        two.set_token_quota("shared", 1)
        assert one.resource_manager().allocate_resource("shared", "a").is_granted
        assert not two.resource_manager().allocate_resource("shared", "b").is_granted


def test_a_redis_that_lost_all_grants_nothing_until_leases_are_over(folder: Path) -> None:
    with redis_running() as redis:
        config = write(folder, REDIS.format("10s", redis.address), "lossy.yaml")
        with start_server(folder, name="lossy", extra=["--config", config]) as server, Client(server.url) as client:
            client.register_token_pool("a", 1)
            until(lambda: client.token_pool("a").opens_in_s == 0, PATIENCE_S, "the pool is open")
            with client.tokens("a", lease_s=5) as held:
                redis.restart()
                codes = set()

                def is_open() -> bool:
                    answer = post(server, "a/allocate", token="other")
                    codes.add(answer.json.get("code") or answer.json["status"])
                    return answer.status == 200

                until(is_open, PATIENCE_S, "the pool is open again")
                held.check()
            assert "rebuilding" in codes
            assert 1 not in codes, "granted beside one who held it all the time"
