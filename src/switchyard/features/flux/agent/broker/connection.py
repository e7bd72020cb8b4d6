"""The agent's side of the bridge: starts it, sends requests with a time limit, and hands on the events.

A request that times out closes the bridge: what the broker made of it is not known, and the next request begins with a
new connection. The bridge is an ordinary child process. It ends with the agent, since its stdin is then closed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from switchyard.agent.backends.shared.contact import Contact
from switchyard.agent.log import line
from switchyard.errors import Unavailable
from switchyard.features.flux.agent.flux_site import FluxSite

log = logging.getLogger(__name__)

BRIDGE_PROGRAM = Path(__file__).with_name("bridge_program.py")
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "FLUX_URI", "SSH_AUTH_SOCK")
ERROR_BYTES_MAX = 2000
KILL_S = 2.0
START_ADVICE = "Try `flux uptime` under the agent's account; name the instance with `flux: {uri: …}` in the site file."


class FluxTimeout(Unavailable):
    """The instance gave no answer in time."""

    default_next = "See whether the broker runs (`flux uptime`); the agent asks again by itself."


class FluxAbsent(Unavailable):
    """There is no connection to the instance, and none can be made. No request was sent."""

    default_next = START_ADVICE


class FluxRefusal(Unavailable):
    """Flux answered with an error. Callers that know what it means catch it; otherwise it may pass."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(f"Flux answered: {text}")
        self.text = text
        self.number = number


class BridgeMessage(msgspec.Struct, frozen=True):
    """One line of the bridge: a greeting, an answer, an event of a job, or a last word."""

    id: int | None = None
    result: Any = None
    error: str | None = None
    errno: int = 0
    job: int | None = None
    name: str = ""
    event: dict[str, Any] | None = None
    unknown: str | None = None
    dropped: str | None = None
    hello: dict[str, Any] | None = None
    fatal: str | None = None


@dataclass(slots=True)
class _Bridge:
    """One running bridge process."""

    process: subprocess.Popen[bytes]
    version: str = ""
    waiting: dict[int, queue.SimpleQueue[BridgeMessage | None]] = field(default_factory=dict)
    greeting: queue.SimpleQueue[BridgeMessage | None] = field(default_factory=queue.SimpleQueue)
    is_over: bool = False
    last_word: str = ""


class BrokerConnection:
    """Used by several threads. `on_message` gets events, on the reader's thread, and None when a bridge has ended."""

    def __init__(
        self,
        site: FluxSite,
        environment: Mapping[str, str],
        log_file: Path,
        *,
        on_message: Callable[[BridgeMessage | None], None],
    ) -> None:
        self._site = site
        self._log_file = log_file
        self._on_message = on_message
        self._environment = {"PATH": os.defpath, **{key: environment[key] for key in INHERITED if key in environment}}
        if site.uri:
            self._environment["FLUX_URI"] = site.uri
        self._lock = threading.Lock()  # of `_bridge`, and of writes
        self._bridge: _Bridge | None = None
        self._numbers = itertools.count(1)
        self._is_closed = False
        self.contact = Contact("Flux")

    @property
    def version(self) -> str:
        """The version of the instance, once it has answered."""
        bridge = self._bridge
        return bridge.version if bridge else ""

    def call(self, op: str, **fields: Any) -> Any:
        """Send a request and return the result. Raises FluxRefusal for an error of Flux, Unavailable for silence."""
        self.contact.note_asked()
        try:
            result = self._exchange(op, fields)
        except FluxRefusal:
            self.contact.note_answer()
            raise
        except Unavailable as exc:
            self.contact.note_failure(exc.detail)
            raise
        self.contact.note_answer()
        return result

    def _exchange(self, op: str, fields: Mapping[str, Any]) -> Any:
        number = next(self._numbers)
        answers: queue.SimpleQueue[BridgeMessage | None] = queue.SimpleQueue()
        with self._lock:
            bridge = self._connect()
            bridge.waiting[number] = answers
            self._write(bridge, {"id": number, "op": op, **fields})
        try:
            message = answers.get(timeout=self._site.timeout_s)
        except queue.Empty:
            self._end(bridge)
            raise FluxTimeout(f"Flux gave no answer to {op} within {self._site.timeout_s:g} s.") from None
        finally:
            bridge.waiting.pop(number, None)
        if message is None:
            raise Unavailable(self._ended_text(bridge), next_step=START_ADVICE)
        if message.error is not None:
            raise FluxRefusal(message.error, message.errno)
        return message.result

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            bridge = self._bridge
        if bridge is not None:
            self._end(bridge)

    def _connect(self) -> _Bridge:
        """The bridge that runs, or a new one. Called with the lock."""
        if self._is_closed:
            raise FluxAbsent("The agent is ending.")
        if self._bridge is not None:
            if not self._bridge.is_over:
                return self._bridge
            self._kill(self._bridge)
        flux = f"{self._site.bin}/flux" if self._site.bin else "flux"
        try:
            with self._log_file.open("wb") as log_file:
                process = subprocess.Popen(
                    [flux, "python", str(BRIDGE_PROGRAM)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    env=self._environment,
                    cwd="/",
                    start_new_session=True,  # a signal of the terminal is for the agent
                )
        except OSError as exc:
            raise FluxAbsent(f"{flux} cannot be run: {exc.strerror}.", next_step="Is Flux installed here?") from exc
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        bridge = self._bridge = _Bridge(process)
        threading.Thread(target=self._read, args=(bridge,), name="flux-bridge", daemon=True).start()
        try:
            greeting = bridge.greeting.get(timeout=self._site.timeout_s)
        except queue.Empty:
            self._kill(bridge)
            raise FluxAbsent(f"The Flux instance did not answer within {self._site.timeout_s:g} s.") from None
        if greeting is None or greeting.hello is None:
            self._kill(bridge)
            raise FluxAbsent(self._ended_text(bridge))
        bridge.version = str(greeting.hello.get("version", ""))
        return bridge

    def _write(self, bridge: _Bridge, request: dict[str, Any]) -> None:
        """Write a whole line within the time limit: a bridge that hangs does not read."""
        assert bridge.process.stdin is not None
        number, body = bridge.process.stdin.fileno(), memoryview(msgspec.json.encode(request) + b"\n")
        deadline = time.monotonic() + self._site.timeout_s
        try:
            while body:
                if not select.select([], [number], [], max(0.0, deadline - time.monotonic()))[1]:
                    self._kill(bridge)
                    raise FluxTimeout(f"Flux took no request within {self._site.timeout_s:g} s.")
                body = body[os.write(number, body) :]
        except OSError as exc:
            bridge.waiting.pop(request["id"], None)
            bridge.is_over = True
            raise Unavailable(self._ended_text(bridge), next_step=START_ADVICE) from exc

    def _read(self, bridge: _Bridge) -> None:
        """Hand on every line of the bridge, until it ends."""
        assert bridge.process.stdout is not None
        decoder = msgspec.json.Decoder(BridgeMessage)
        try:
            with contextlib.suppress(OSError, ValueError):  # closed by `_kill`
                for text in bridge.process.stdout:
                    try:
                        message = decoder.decode(text)
                    except msgspec.DecodeError:  # something that Flux's Python printed
                        continue
                    self._hand_on(bridge, message)
        except Exception:
            log.exception(line("defect", thread="flux-bridge"))
        finally:  # after a defect, too: a bridge that nobody reads must not count as running
            bridge.is_over = True
            with contextlib.suppress(OSError):
                bridge.process.kill()
            bridge.greeting.put(None)
            for answers in list(bridge.waiting.values()):
                answers.put(None)
            self._on_message(None)

    def _hand_on(self, bridge: _Bridge, message: BridgeMessage) -> None:
        if message.fatal is not None:
            bridge.last_word = message.fatal
        elif message.hello is not None:
            bridge.greeting.put(message)
        elif message.id is None:
            self._on_message(message)
        elif (answers := bridge.waiting.get(message.id)) is not None:
            answers.put(message)

    def _end(self, bridge: _Bridge) -> None:
        with self._lock:
            self._kill(bridge)

    def _kill(self, bridge: _Bridge) -> None:
        bridge.is_over = True
        if bridge is self._bridge:
            self._bridge = None
        with contextlib.suppress(OSError):
            bridge.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            bridge.process.wait(KILL_S)
        if bridge.process.stdin is not None:
            with contextlib.suppress(OSError):
                bridge.process.stdin.close()

    def _ended_text(self, bridge: _Bridge) -> str:
        if bridge.last_word:
            return f"{bridge.last_word[:1].upper()}{bridge.last_word[1:]}."
        try:
            text = self._log_file.read_bytes()[-ERROR_BYTES_MAX:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"The connection to Flux ended: {text.splitlines()[-1] if text else 'without a word'}."
