"""Output of pods: taken by the log API into files of the agent's folder, while they run and whole at their end.

stdout and stderr come as one stream: Kubernetes keeps them apart only behind a feature gate that is off. A running pod
is followed by one stream, so that the kubelet's rotation loses nothing. With more running pods than streams, the others
are read in turns. After the end of a pod its log is read once more, since a stream that was cut looks like its end.

A file of output has a bound, so that one job cannot fill the agent's disk: the middle of a longer output is dropped.
A file of output has a file beside it with the position of the last whole line. After a crash, output goes on there.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from switchyard.agent.backends import OutputPiece
from switchyard.agent.log import line
from switchyard.agent.private_files import private_opener, replace_file
from switchyard.errors import YardError
from switchyard.features.kubernetes.agent.api.api import ApiStream, KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal, ApiUnavailable
from switchyard.features.kubernetes.agent.pods.log_stream import LogPosition, LogReader

FOLLOWS_MAX = 64  # streams, each with a thread
READERS = 4  # threads that read logs of ended pods, and of running ones that have no stream
FOLLOW_AFTER_S = 1.0  # short jobs are read once, at their end
TURN_S = 5.0  # between two reads of a running pod without a stream
LOGS_TICK_S = 0.25
LOG_SILENCE_S = 300.0  # a stream of a quiet pod begins again after this time
READ_S = 30.0  # without a byte, in a read that does not follow
SAVE_EVERY_S = 0.5
UNFOLLOWED_S = 3.0  # a stream that goes on for this long after the end of its pod is cut
LOG_RETRY_S = 1.0
NODE_WAIT_S = 60.0  # the end of a job waits so long for output that its node does not give
LARGE_BYTES = 2**20  # a read of more is checked by another one
POD_OUTPUT_BYTES_MAX = 2**30  # of one file; a server keeps 4 MiB of it unless its config says otherwise
STEPS = 8  # how often the hole grows while as much as the bound is written
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod whose log is read."""

    namespace: str
    name: str
    container: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}/log"


class _Task:
    """One output file. Only one thread at a time works on it (`is_busy`)."""

    def __init__(self, key: str, pod: PodRef, wanted_s: float) -> None:
        self.key = key
        self.pod = pod
        self.wanted_s = wanted_s  # since when it is to be read
        self.is_ended = False
        self.is_gone = False  # there is nothing to read any more
        self.is_busy = False
        self.is_dropped = False
        self.due_s = 0.0
        self.ended_s = 0.0
        self.failing_s = 0.0  # since when the API answers that the log cannot be read; 0: it does not
        self.stream: ApiStream | None = None
        self.problem = ""
        self.done = threading.Event()


class LogCollector:
    """Used by several threads."""

    def __init__(
        self,
        api: KubernetesApi,
        folder: Path,
        *,
        bytes_max: int = POD_OUTPUT_BYTES_MAX,
        on_done: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`bytes_max`: of one output, on the agent's disk. `on_done` is called with the key of a complete output."""
        self._api = api
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bytes_max = bytes_max
        self._on_done = on_done
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._queue: deque[_Task] = deque()
        self._is_queued = threading.Semaphore(0)
        self._stop = threading.Event()
        self._follows = 0

    def start(self) -> None:
        threading.Thread(target=self._manage, name="logs", daemon=True).start()
        for number in range(READERS):
            threading.Thread(target=self._read_queued, name=f"logs-{number}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        for _ in range(READERS):
            self._is_queued.release()

    def collect(self, key: str, pod: PodRef, *, is_urgent: bool = False) -> None:
        """Take the output of a running pod. `is_urgent`: what there is now, at once; the pod is about to go."""
        with self._lock:
            task = self._tasks.setdefault(key, _Task(key, pod, time.monotonic()))
            if is_urgent and not task.is_ended:
                task.wanted_s -= FOLLOW_AFTER_S
                self._enqueue(task)

    def finish(self, key: str, pod: PodRef | None) -> str | None:
        """The pod has ended: take the rest of its output. None: it is being taken; else what is wrong, mostly nothing.

        No pod: there is nothing left to read. The answer stays until `release`.
        """
        with self._lock:
            task = self._tasks.get(key)
            if task is None:
                if pod is None:
                    return ""
                task = self._tasks[key] = _Task(key, pod, time.monotonic())
            if not task.is_ended:
                task.is_ended, task.ended_s = True, time.monotonic()
                task.is_gone = pod is None
                self._enqueue(task)
            return task.problem if task.done.is_set() else None

    def release(self, key: str) -> None:
        """The output is complete and was asked for: forget how it was read."""
        with self._lock:
            self._tasks.pop(key, None)

    def read(self, key: str, *, offset: int, size: int) -> OutputPiece:
        try:
            with self._file(key).open("rb") as file:
                total = os.fstat(file.fileno()).st_size
                file.seek(offset)
                return OutputPiece(file.read(size) if size else b"", total)
        except FileNotFoundError:
            return OutputPiece(b"", 0)

    def has(self, key: str) -> bool:
        """Whether there is an output, perhaps an empty one."""
        return self._file(key).exists()

    def drop(self, key: str) -> None:
        """Remove the output and all that is known of it."""
        with self._lock:
            task = self._tasks.pop(key, None)
            if task is not None:
                task.is_dropped = True
                if task.stream is not None:
                    task.stream.abort()
        self._file(key).unlink(missing_ok=True)
        self._mark(key).unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.out"

    def _mark(self, key: str) -> Path:
        return self._folder / f"{key}.mark"

    def _enqueue(self, task: _Task) -> None:
        """Called with the lock held."""
        if not task.is_busy:
            task.is_busy = True
            self._queue.append(task)
            self._is_queued.release()

    def _manage(self) -> None:
        """Start streams for running pods, and look after ended ones whose read failed or whose stream goes on."""
        while not self._stop.is_set():
            now = time.monotonic()
            with self._lock:
                for task in self._tasks.values():
                    self._advance(task, now)
            self._stop.wait(LOGS_TICK_S)

    def _advance(self, task: _Task, now: float) -> None:
        if task.done.is_set() or task.due_s > now:
            return
        if task.is_busy:
            if task.is_ended and task.stream is not None and now - task.ended_s > UNFOLLOWED_S:
                task.stream.abort()
            return
        if task.is_ended:
            self._enqueue(task)
        elif now - task.wanted_s >= FOLLOW_AFTER_S:
            if self._follows < FOLLOWS_MAX:
                self._follows += 1
                task.is_busy = True
                threading.Thread(target=self._follow, args=(task,), name=f"log-{task.key}", daemon=True).start()
            else:
                task.due_s = now + TURN_S
                self._enqueue(task)

    def _follow(self, task: _Task) -> None:
        try:
            self._work(task, is_following=True)
        finally:
            with self._lock:
                self._follows -= 1

    def _read_queued(self) -> None:
        while not self._stop.is_set():
            self._is_queued.acquire()
            with self._lock:
                task = self._queue.popleft() if self._queue else None
            if task is not None:
                self._work(task, is_following=False)

    def _work(self, task: _Task, *, is_following: bool) -> None:
        """Read once, or follow, then release the task. `is_ended` is looked at before: it may end meanwhile."""
        is_last, problem = task.is_ended and not is_following, ""
        try:
            is_done = is_last and (task.is_gone or self._take(task, is_following=False))
            if not is_last:
                self._take(task, is_following=is_following)
            task.failing_s = 0.0
            problem = self._dropped(task.key) if is_done else ""
        except YardError as exc:
            is_done, problem = self._failed(task, exc, is_last=is_last)
        except Exception:
            log.exception(line("defect", thread=threading.current_thread().name))
            is_done, problem = False, ""
            task.due_s = time.monotonic() + TURN_S
        with self._lock:
            task.is_busy = False
            if is_done:
                task.problem = problem
                task.done.set()
            elif task.is_ended and not task.is_dropped and task.due_s <= time.monotonic():
                self._enqueue(task)
        if is_done:
            self._on_done(task.key)

    def _failed(self, task: _Task, exc: YardError, *, is_last: bool) -> tuple[bool, str]:
        """Whether to give up, and what to say then."""
        now = time.monotonic()
        task.due_s = now + LOG_RETRY_S if is_last or not task.is_ended else now
        if isinstance(exc, ApiRefusal) and exc.is_absent:
            return is_last, "the rest of its output is lost: its pod is gone"
        if isinstance(exc, ApiRefusal):
            # 400: the container has not started. After the end of the pod, it never did.
            return is_last, "" if exc.http_status == 400 else f"its output cannot be read: {exc.message}"
        if isinstance(exc, ApiUnavailable) and exc.http_status >= 500:
            task.failing_s = task.failing_s or now
            if is_last and now - task.failing_s > NODE_WAIT_S:
                return True, f"its output cannot be read from its node: {exc.detail}"
        return False, ""

    def _take(self, task: _Task, *, is_following: bool) -> bool:
        """Add to the file what the log has beyond it. True: there was nothing suspicious about its end."""
        position = self._position(task.key)
        query: dict[str, str | bool] = {"container": task.pod.container, "timestamps": True}
        if position.since:
            query["sinceTime"] = position.since
        if is_following:
            query["follow"] = True
        stream = self._api.open_stream(task.pod.path, query, silence_s=LOG_SILENCE_S if is_following else READ_S)
        with self._lock:
            task.stream = stream if is_following else None
        reader, saved, begun_s = LogReader(position), position, time.monotonic()
        saved_s = begun_s
        is_begun = False
        with open(self._file(task.key), "r+b", opener=_creating_opener) as file:
            output = BoundedOutput(file, position.size, self._bytes_max)
            try:
                for piece in stream:
                    if not is_begun:  # not before there is an answer: the log may be gone
                        output.begin()
                        is_begun = True
                    output.write(reader.feed(piece))
                    file.flush()  # the next piece may come in an hour
                    if time.monotonic() - saved_s > SAVE_EVERY_S:
                        saved, saved_s = self._save(task, reader.position, saved), time.monotonic()
                output.write(reader.end())
            finally:
                file.flush()
                self._save(task, reader.position, saved)
                with self._lock:
                    task.stream = None
        return reader.position.size - position.size < LARGE_BYTES or position.size == reader.position.size

    def _save(self, task: _Task, position: LogPosition, saved: LogPosition) -> LogPosition:
        """Save a position after its output, so that it is never beyond it."""
        if position != saved and not task.is_dropped:
            replace_file(self._mark(task.key), msgspec.json.encode(position), is_durable=False)
        return position

    def _dropped(self, key: str) -> str:
        """What to say of an output whose end is not in the file."""
        size = self._position(key).size
        is_whole = self._file(key).exists() and self._file(key).stat().st_size >= size
        return (
            ""
            if is_whole or size <= self._bytes_max
            else f"the last {size - self._bytes_max} bytes of its output were dropped"
        )

    def _position(self, key: str) -> LogPosition:
        try:
            position = msgspec.json.decode(self._mark(key).read_bytes(), type=LogPosition)
            if self._file(key).stat().st_size >= min(position.size, self._bytes_max):
                return position
        except (OSError, msgspec.DecodeError):
            pass
        return LogPosition()


def _creating_opener(path: str, flags: int) -> int:
    return private_opener(path, flags | os.O_CREAT)


class BoundedOutput:
    """Writes output within a bound: its beginning and its end are kept, the middle is dropped.

    A server keeps the first and the last half of its own bound (`logs.bytes_max`), whatever the cluster. On this
    machine and on Slurm it takes them from the job's file, which has no bound. Here the file gets a hole in its middle:
    every byte keeps its offset, and a hole takes no disk. On a file system without holes (NFS before 4.2) the end is
    dropped instead. `file` can be written at any place; `size`: how many bytes of output there were before.
    """

    def __init__(self, file: BinaryIO, size: int, bytes_max: int) -> None:
        self._file = file
        self._size = size
        self._bytes_max = bytes_max
        self._half = bytes_max // 2
        self._step = max(1, bytes_max // STEPS)
        self._hole_due = max(bytes_max, size)  # the size at which the hole is made or grows
        self._is_end_dropped = False

    def begin(self) -> None:
        """Remove what the file has beyond `size`: it comes again."""
        self._is_end_dropped = os.fstat(self._file.fileno()).st_size < self._size
        end = min(self._size, self._bytes_max) if self._is_end_dropped else self._size
        self._file.truncate(end)
        self._file.seek(end)
        if self._is_end_dropped:
            self._file.write(self._notice_of("the end of"))

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._is_end_dropped:
            return
        self._file.write(data)
        if self._size > self._hole_due:
            self._hole_due = self._size + self._step
            self._drop_middle()

    def _drop_middle(self) -> None:
        end = self._size - self._half + self._step  # at most half of the bound stays until the next time
        self._file.flush()
        try:
            _punch_hole(self._file.fileno(), self._half, end - self._half)
        except OSError as exc:
            log.warning(line("output-end-dropped", file=self._file.name, error=exc))
            self._is_end_dropped = True
            self._file.truncate(self._bytes_max)
            self._file.seek(self._bytes_max)
            self._file.write(self._notice_of("the end of"))
            return
        # Seen only if the server's bound is above this one.
        os.pwrite(self._file.fileno(), self._notice_of("the middle of")[: end - self._half], self._half)

    def _notice_of(self, part: str) -> bytes:
        return f"\n--- {part} output beyond {self._bytes_max} bytes is dropped ---\n".encode()


def _punch_hole(number: int, offset: int, size: int) -> None:
    if _fallocate is None:
        raise OSError("this system has no holes in files")
    if _fallocate(number, KEEP_SIZE | PUNCH_HOLE, offset, size):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
