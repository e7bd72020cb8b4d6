"""A server whose Python has no flyteidl: it runs, and Flyte's doors say what is missing."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.processes import free_port
from tests.programs import call, start_server


def test_without_flytes_messages_its_doors_refuse_and_all_else_works(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text("import sys\nsys.modules['flyteidl'] = None\n")
    port = free_port()
    extra = ("--grpc", f"127.0.0.1:{port}")
    with start_server(tmp_path, extra=extra, env={"PYTHONPATH": str(tmp_path / "without")}) as server:
        answer = call("GET", f"{server.url}/api/v1/domains")
        assert (answer.status, answer.json["code"]) == (501, 12)
        assert "flyteidl is not installed" in answer.json["message"]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary("/flyteidl.service.AdminService/GetDomains")
            with pytest.raises(grpc.RpcError) as caught:
                ask(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "flyteidl is not installed" in caught.value.details()
        assert call("GET", f"{server.url}/v1/domains").status == 200
        answer = call("GET", f"{server.url}/v1/executions")
        assert (answer.status, "flyteidl is not installed" in answer.json["detail"]) == (404, True)
        assert call("GET", f"{server.url}/metrics").status == 200
