"""Connections to one Redis. It knows nothing of tokens.

A Redis that restarted may have lost data. So every new connection reads the `run_id` of the Redis process, and every
command carries it: a script can tell that it runs in another process than the caller thinks.
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
TIMEOUT_S = 2.0  # for one answer: a script takes microseconds, and a user's request waits for it
IDLE_MAX = 64  # connections kept open for reuse
PAUSE_S = 0.05  # before the first retry; it doubles
PAUSE_S_MAX = 1.0
HUNG_PAUSE_S = 5.0  # after a time-out: until one caller may try again
# Worth a retry on another connection: closed, loading its data, or no longer the primary.
RETRIABLE_ERRORS = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError, OSError)

CommandBuilder = Callable[[bytes], bytes]  # makes a command from the encoded run_id


class RedisConnection:
    """A connection and the run_id of the process at its other end."""

    def __init__(self, connection: Connection, run: bytes) -> None:
        self.connection = connection
        self.run = run
        self.run_part = encode_word(run)

    def ask(self, command: bytes) -> Any:
        self.connection.send_packed_command([command], check_health=False)
        return self.connection.read_response()


class RedisConnectionPool:
    """Opens as many connections as are used at once. `primary`: ask Sentinels at the addresses for this name."""

    def __init__(self, addresses: Sequence[str], *, password: str = "", primary: str = "", retries: int = 3) -> None:
        self._addresses = [_address(address) for address in addresses]
        self._password = password or None
        self._primary = primary
        self._retries = retries
        self._idle: deque[RedisConnection] = deque()
        self._lock = threading.Lock()
        self._hung_until = 0.0  # no command is sent before this time; 0: Redis answers

    def ask(self, pack: CommandBuilder, *, scripts: Sequence[bytes] = ()) -> Any:
        """Send one command and return its answer. A failed command is retried, so it must be repeatable.

        `scripts`: loaded if Redis does not know them. After a time-out only one caller at a time tries again; other
        callers are refused at once, since a Redis that hangs would block all threads of the server.
        """
        self._refuse_if_hung()
        for tries_left in range(self._retries, -1, -1):
            line: RedisConnection | None = None
            try:
                line = self._take()
                answer = _run_command(line, pack, scripts)
            except RETRIABLE_ERRORS as exc:
                if line is not None:
                    line.connection.disconnect()
                self.close()  # the other connections lead to the same process
                is_hung = isinstance(exc, redis.TimeoutError | TimeoutError)
                if is_hung:
                    self._hung_until = time.monotonic() + HUNG_PAUSE_S
                if is_hung or not tries_left:
                    raise _redis_unavailable(exc) from exc
                time.sleep(min(PAUSE_S * 2 ** (self._retries - tries_left), PAUSE_S_MAX))
            except redis.RedisError as exc:
                if line is not None:
                    line.connection.disconnect()
                raise _redis_unavailable(exc) from exc
            except BaseException:  # the answer may still arrive: no other caller must read it
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
            self._hung_until = now + HUNG_PAUSE_S  # this caller tries

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
            info = connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        run = next((info_line[7:] for info_line in bytes(info).split(b"\r\n") if info_line.startswith(b"run_id:")), b"")
        if not run:
            connection.disconnect()
            raise Unavailable("Redis does not say its run_id (INFO server): no token can be granted safely.")
        return RedisConnection(connection, run)

    def _where(self) -> tuple[str, int]:
        if not self._primary:
            return self._addresses[0]
        address: tuple[str, int] = Sentinel(
            self._addresses, socket_timeout=TIMEOUT_S, sentinel_kwargs={"socket_timeout": TIMEOUT_S}
        ).discover_master(self._primary)
        return address


def encode_word(value: bytes) -> bytes:
    """Encode one word of a command for the wire."""
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
