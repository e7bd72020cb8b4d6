"""Connections to one Redis, each of which knows the process it speaks to. It knows nothing of tokens.

A process that restarted may have lost what the one before it answered. So each connection asks for the process's own
`run_id` when it is made; whoever calls over it sends that along, and can never mistake one process for another.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry
from redis.sentinel import Sentinel

from switchyard.errors import Unavailable

DEFAULT_PORT = 6379
TIMEOUT_S = 2.0  # for one answer: a script runs for microseconds, and whoever waits is a request of a user
IDLE_MAX = 64  # connections kept for the next caller
PAUSE_S = 0.05  # before the first of the further tries; it doubles
PAUSE_S_MAX = 1.0
HUNG_PAUSE_S = 5.0  # after one that did not answer in time: until the next may try whether it does again
# Somebody else may do it: the connection is gone, the process loads its data, or has become a replica.
RETRIABLE_ERRORS = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError, OSError)

CommandBuilder = Callable[[bytes], bytes]  # from the process's run, as part of a command, to the whole command


class RedisConnection:
    """One connection."""

    def __init__(self, connection: Connection, run: bytes) -> None:
        self.connection = connection
        self.run = run
        self.run_part = encode_word(run)

    def ask(self, command: bytes) -> Any:
        self.connection.send_packed_command([command], check_health=False)
        return self.connection.read_response()


class RedisConnectionPool:
    """As many as are used at once. `primary`: the addresses are Sentinels', who know where that one is."""

    def __init__(self, addresses: Sequence[str], *, password: str = "", primary: str = "", retries: int = 3) -> None:
        self._addresses = [_address(each) for each in addresses]
        self._password = password or None
        self._primary = primary
        self._retries = retries
        self._idle: deque[RedisConnection] = deque()
        self._lock = threading.Lock()
        self._hung_until = 0.0  # nobody tries before; 0: it answered

    def ask(self, pack: CommandBuilder, *, scripts: Sequence[bytes] = ()) -> Any:
        """One command and its answer; again on another connection if this one fails, so only what may be repeated.

        `scripts`: loaded where the process does not know them. One that hangs would hang all who ask, and what they
        serve besides: after a time-out one at a time tries again, the others are refused at once.
        """
        self._refuse_if_hung()
        for left in range(self._retries, -1, -1):
            line: RedisConnection | None = None
            try:
                line = self._take()
                answer = _run_command(line, pack, scripts)
            except RETRIABLE_ERRORS as exc:
                if line is not None:
                    line.connection.disconnect()
                self.close()  # the others lead to the same process
                is_hung = isinstance(exc, redis.TimeoutError | TimeoutError)
                if is_hung:
                    self._hung_until = time.monotonic() + HUNG_PAUSE_S
                if is_hung or not left:
                    raise _redis_unavailable(exc) from exc
                time.sleep(min(PAUSE_S * 2 ** (self._retries - left), PAUSE_S_MAX))
            except redis.RedisError as exc:
                if line is not None:
                    line.connection.disconnect()
                raise _redis_unavailable(exc) from exc
            except BaseException:  # whatever it was, an answer may still be on its way: nobody else must read it
                if line is not None:
                    line.connection.disconnect()
                raise
            else:
                self._hung_until = 0.0
                self._give(line)
                return answer
        raise AssertionError

    def _refuse_if_hung(self) -> None:
        if not self._hung_until:
            return
        with self._lock:
            now = time.monotonic()
            if now < self._hung_until:
                raise _redis_unavailable(TimeoutError(f"it did not answer within {TIMEOUT_S:g} s"))
            self._hung_until = now + HUNG_PAUSE_S  # this one tries

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, deque()
        for line in idle:
            line.connection.disconnect()

    def _take(self) -> RedisConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _give(self, line: RedisConnection) -> None:
        if len(self._idle) < IDLE_MAX:
            self._idle.append(line)
        else:
            line.connection.disconnect()

    def _connect(self) -> RedisConnection:
        host, port = self._where()
        connection = Connection(
            host=host,
            port=port,
            password=self._password,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            connection.connect()
            connection.send_command("INFO", "server")
            said = connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        run = next((each[7:] for each in bytes(said).split(b"\r\n") if each.startswith(b"run_id:")), b"")
        if not run:
            connection.disconnect()
            raise Unavailable("Redis does not say its run_id (INFO server): no token can be granted safely.")
        return RedisConnection(connection, run)

    def _where(self) -> tuple[str, int]:
        if not self._primary:
            return self._addresses[0]
        found: tuple[str, int] = Sentinel(
            self._addresses, socket_timeout=TIMEOUT_S, sentinel_kwargs={"socket_timeout": TIMEOUT_S}
        ).discover_master(self._primary)
        return found


def encode_word(value: bytes) -> bytes:
    """One word of a command, as it goes over the wire."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _run_command(line: RedisConnection, pack: CommandBuilder, scripts: Sequence[bytes]) -> Any:
    command = pack(line.run_part)
    try:
        return line.ask(command)
    except redis.exceptions.NoScriptError:
        for script in scripts:
            line.ask(b"*3\r\n" + encode_word(b"SCRIPT") + encode_word(b"LOAD") + encode_word(script))
        return line.ask(command)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if colon and port.isdigit():
        return host.removeprefix("[").removesuffix("]"), int(port)
    return text, DEFAULT_PORT


def _redis_unavailable(exc: BaseException) -> Unavailable:
    error = Unavailable(
        "The Redis of the token pools does not answer as it should.",
        next_step="Try again in a few seconds; a token that was granted stays granted until its lease is over.",
    )
    error.add_note(f"({type(exc).__name__}: {exc})")
    return error
