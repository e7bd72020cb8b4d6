"""Client calls for resource graphs, subsystems, and whether a job would fit. Graphs are sent compressed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from switchyard.errors import NotFound, TooLarge, Unavailable
from switchyard.model.cluster.cluster import GraphInfo, Subsystem
from switchyard.model.cluster.verdict import FitAnswer, FitRequest
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobRequest, JobSpec
from switchyard.model.wire.api import Page
from switchyard.sdk.transport.calls import ApiCalls, api_path

GRAPH_BYTES_MAX = 256 * 2**20  # the server's limit
GRAPH_TIMEOUT_S = 300.0  # a large graph has to be sent, parsed and stored
PIECE_BYTES = 2**20
GZIP_WBITS = 16 + zlib.MAX_WBITS

# A file, its bytes, or the parsed values.
GraphSource = Path | bytes | Mapping[str, Any] | list[Any]
T = TypeVar("T")
JobInput = str | Sequence[str] | JobSpec | JobRequest | Mapping[str, Any]
# Called with (done, total): the jobs of a bulk submit, or the bytes of a graph, compressed first and then sent.
OnProgress = Callable[[int, int], None]


class GraphCalls(ApiCalls):
    """Client calls about the resources of clusters."""

    def graph(self, cluster: str) -> Graph:
        """Return the resource graph of a cluster, in its compact form."""
        return self._get(api_path("clusters", cluster, "graph"), Graph, timeout_s=GRAPH_TIMEOUT_S)

    def graph_source(self, cluster: str) -> bytes:
        """Return the resource graph in the form in which it was set."""
        return self._get_bytes(
            api_path("clusters", cluster, "graph"), query={"form": "source"}, timeout_s=GRAPH_TIMEOUT_S
        )

    def set_graph(self, cluster: str, source: GraphSource, *, on_progress: OnProgress | None = None) -> GraphInfo:
        """Set the resource graph of a cluster: JGF, R or the short form. It overrides the agent's graph."""
        return self._upload(api_path("clusters", cluster, "graph"), GraphInfo, source, on_progress)

    def delete_graph(self, cluster: str) -> None:
        """Remove the graph that was set. The agent's graph applies again."""
        self._delete(api_path("clusters", cluster, "graph"))

    def subsystems(self, cluster: str) -> Iterator[Subsystem]:
        """Yield the subsystems of a cluster. Raise NotFound if there is no such cluster."""
        return iter(self._get(api_path("clusters", cluster, "subsystems"), Page[Subsystem]).items)

    def subsystem_source(self, cluster: str, subsystem: str) -> bytes:
        """Return the bytes of a subsystem's graph, as they were set. Raise NotFound if there is none."""
        return self._get_bytes(api_path("clusters", cluster, "subsystems", subsystem), timeout_s=GRAPH_TIMEOUT_S)

    def set_subsystem(
        self, cluster: str, subsystem: str, source: GraphSource, *, on_progress: OnProgress | None = None
    ) -> Subsystem:
        """Set or replace a subsystem: a further graph on the vertices of the main graph."""
        return self._upload(api_path("clusters", cluster, "subsystems", subsystem), Subsystem, source, on_progress)

    def delete_subsystem(self, cluster: str, subsystem: str) -> None:
        """Delete a subsystem of a cluster. Raise NotFound if there is none."""
        self._delete(api_path("clusters", cluster, "subsystems", subsystem))

    def fit(
        self, job: JobInput, *, match_engine: str | None = None, only_fitting: bool = False, now: bool = True
    ) -> FitAnswer:
        """Ask on which of the clusters you may see a job would fit. Submits nothing. The command may be left out."""
        from switchyard.model.jobspec.jobspec import is_jobspec
        from switchyard.sdk.transport.request import build_job_request, with_image_compatibility

        base = {"command": ["true"], **job} if isinstance(job, Mapping) and not is_jobspec(job) else job
        request = with_image_compatibility(build_job_request(base, {}))
        body = FitRequest(request, match_engine=match_engine, only_fitting=only_fitting, now=now)
        return self._post(api_path("clusters", "fit"), FitAnswer, body=body, repeatable=True)

    def _upload(self, path: str, kind: type[T], source: GraphSource, on_progress: OnProgress | None) -> T:
        report = on_progress or (lambda _done, _total: None)
        body = compress_source(source, on_progress=report)
        return self._put_bytes(
            path,
            kind,
            body=body,
            headers={"Content-Encoding": "gzip"},
            timeout_s=GRAPH_TIMEOUT_S,
            on_sent=lambda done: report(done, len(body)),
        )


def compress_source(source: GraphSource, *, on_progress: OnProgress) -> bytes:
    """Compress a graph source with gzip."""
    if not isinstance(source, Path):
        body = source if isinstance(source, bytes) else msgspec.json.encode(source)
        return _compress(iter([body]), len(body), on_progress)
    try:
        size = source.stat().st_size
        with source.open("rb") as file:
            return _compress(_pieces(file), size, on_progress)
    except FileNotFoundError as exc:
        raise NotFound(f"There is no file {source}.", next_step="Name a file that is there, or - for stdin.") from exc
    except OSError as exc:
        raise Unavailable(f"{source} cannot be read: {exc.strerror}.", next_step="Check the file.") from exc


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _compress(pieces: Iterator[bytes], size: int, on_progress: OnProgress) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, GZIP_WBITS)
    packed, done = bytearray(), 0
    for piece in pieces:
        done += len(piece)
        if done > GRAPH_BYTES_MAX:
            raise TooLarge(f"The graph has over {GRAPH_BYTES_MAX} bytes.")
        packed += packer.compress(piece)
        on_progress(done, max(size, done))
    return bytes(packed + packer.flush())
