"""Compile graphs from their sources. Large graphs are compiled in a worker process, so that the server keeps serving.

Sources are not trusted. A source that exhausts time, memory or stack ends only its worker process.
"""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from switchyard.errors import ERRORS_BY_CODE, Busy, Malformed, TooLarge, Unavailable
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.graph.stored_graph import read_stored_graph

INLINE_BYTES = 64 * 2**10  # JSON: about 20 ms, during which the decoder holds the interpreter lock
INLINE_TEXT_BYTES = 32 * 2**10  # YAML takes a hundred times as long
WORKERS_MAX = 2  # worker processes at once; a worker may use gigabytes
WAIT_S = 30.0  # for a free worker
COMPILE_S = 120.0  # the largest graph takes a few seconds
MEMORY_BYTES = 8 * 2**30  # 256 MiB of JSON become about 3 GB of values
MAIN_FILE = "main"
Gzipped = bytes  # gzip-compressed

_Answer = dict[str, str]


class GraphCompiler:
    """Compiles small graphs in this process and large graphs in a worker process. Thread-safe."""

    def __init__(self) -> None:
        self._worker_slots = threading.BoundedSemaphore(WORKERS_MAX)
        self._lock = threading.Lock()
        self._workers: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def compile(
        self, main: Gzipped, subsystems: Mapping[str, Gzipped], *, sizes: Mapping[str, int], where: str
    ) -> Graph:
        """Return the compiled graph. `sizes`: uncompressed size of each source; the main source is under ''."""
        if all(_is_small(body, sizes[name]) for name, body in {"": main, **subsystems}.items()):
            return compile_graph(
                gzip.decompress(main), {name: gzip.decompress(body) for name, body in subsystems.items()}, where=where
            )
        if not self._worker_slots.acquire(timeout=WAIT_S):
            raise Busy("Too many large graphs are being read at once.")
        try:
            return self._compile_large(main, subsystems, where)
        finally:
            self._worker_slots.release()

    def close(self) -> None:
        """Kill the running workers."""
        with self._lock:
            self._is_closed = True
            for process in self._workers:
                process.kill()

    def _compile_large(self, main: Gzipped, subsystems: Mapping[str, Gzipped], where: str) -> Graph:
        with TemporaryDirectory(prefix="yard-graph-") as folder:
            sources = Path(folder)
            (sources / MAIN_FILE).write_bytes(main)
            for number, (name, body) in enumerate(sorted(subsystems.items())):
                (sources / f"{number}-{name}").write_bytes(body)
            return _read_worker_answer(*self._run(["-m", __name__, folder, where]))

    def _run(self, arguments: list[str]) -> tuple[int, bytes]:
        with self._lock:
            if self._is_closed:
                raise Unavailable("The server stops.")
            process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            self._workers.add(process)
        try:
            output, _ = process.communicate(timeout=COMPILE_S)
            if self._is_closed:
                raise Unavailable("The server stops.")
            return process.returncode, output
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise TooLarge(f"The graph was not read within {COMPILE_S:g} s.") from None
        finally:
            with self._lock:
                self._workers.discard(process)


def _is_small(body: Gzipped, size: int) -> bool:
    if size <= INLINE_TEXT_BYTES:
        return True
    return size <= INLINE_BYTES and gzip.decompress(body).lstrip()[:1] in (b"{", b"[")


def _read_worker_answer(code: int, output: bytes) -> Graph:
    if code == 0:
        return read_stored_graph(output)
    try:
        problem = msgspec.json.decode(output, type=_Answer)
    except msgspec.DecodeError:
        raise Malformed(
            "The graph cannot be read: it is nested too deeply, or needs more memory than there is for it.",
            next_step="Check its form; a graph of a million vertices is read in some seconds.",
        ) from None
    raise ERRORS_BY_CODE.get(problem["code"], Malformed)(problem["detail"], next_step=problem["next_step"])


def _compile_in_worker(folder: Path, where: str) -> int:
    """Compile the sources in `folder` and write the graph or the error to stdout. Runs in the worker process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from switchyard.errors import YardError

    subsystems = {
        path.name.partition("-")[2]: gzip.decompress(path.read_bytes())
        for path in sorted(folder.iterdir())
        if path.name != MAIN_FILE
    }
    try:
        graph = compile_graph(gzip.decompress((folder / MAIN_FILE).read_bytes()), subsystems, where=where)
    except YardError as exc:
        answer: _Answer = {"code": exc.code, "detail": exc.detail, "next_step": exc.next_step}
        sys.stdout.buffer.write(msgspec.json.encode(answer))
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(graph))
    return 0


if __name__ == "__main__":
    sys.exit(_compile_in_worker(Path(sys.argv[1]), sys.argv[2]))
