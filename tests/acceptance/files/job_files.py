"""Files of jobs over HTTP: upload a tree, read what an attempt left. Knows the API and no insides."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from switchyard.model.files.file_frames import MEDIA, FrameKind, decode_frames, encode_frame
from switchyard.model.files.file_tree import FileEntry, FolderEntry, decode_tree, hash_of
from tests.acceptance.stage import Stage
from tests.agent.files.builders import Executable, Objects, Plain
from tests.processes import PATIENCE_S, until
from tests.programs import COMMAND_S, YARD
from tests.warm_programs import run_script

READ_OBJECTS = 4  # in one request: chunks are large


def yard_in(
    stage: Stage, folder: Path, *args: str, stdin: str | None = None, timeout_s: float = COMMAND_S
) -> subprocess.CompletedProcess[str]:
    """A command of the administrator's in a folder."""
    return run_script([*YARD, *args], env=stage.env, stdin=stdin, timeout_s=timeout_s, cwd=folder)


def upload_tree(stage: Stage, content: Plain, *, token: str | None = None) -> str:
    """Upload a folder (names to bytes, links as text, or folders) and seal it; its hash."""
    objects = Objects()
    root = objects.put_tree(content)
    for digest, data in objects.stored.items():
        body = encode_frame(FrameKind.CONTENT, digest, data)
        answer = stage.call("POST", "/v1/files/objects", body, token=token, headers={"Content-Type": MEDIA})
        assert answer.status == 200, answer.body
    assert stage.post("/v1/files/trees", {"root": root.hex()}, token=token).get("missing", []) == []
    return root.hex()


def outputs_of(stage: Stage, job: str, count: int = 1, *, token: str | None = None) -> list[dict[str, Any]]:
    """The output sets of a job, once there are so many and none is on its way."""

    def look() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = stage.get(f"/v1/jobs/{job}/files", token=token).get("outputs", [])
        is_over = len(found) >= count and all(output["state"] != "uploading" for output in found)
        return found if is_over else []

    return until(look, 2 * PATIENCE_S, f"{count} output sets of {job} are ready")


def read_tree(stage: Stage, job: str, root: str, *, token: str | None = None) -> Plain:
    """All files of a tree of a job, every hash checked."""
    objects = Objects()
    wanted = [bytes.fromhex(root)]
    trees = set(wanted)
    while wanted:
        batch, wanted = wanted[:READ_OBJECTS], wanted[READ_OBJECTS:]
        query = {"root": root, "objects": [digest.hex() for digest in batch]}
        answer = stage.call("POST", f"/v1/jobs/{job}/files/objects", query, token=token)
        assert answer.status == 200, answer.body
        for frame in decode_frames([answer.body]):
            assert frame.kind is FrameKind.CONTENT
            assert hash_of(frame.data) == frame.digest
            objects.stored[frame.digest] = frame.data
            for entry in decode_tree(frame.data) if frame.digest in trees else []:
                below: list[bytes] = []
                if isinstance(entry, FolderEntry):
                    below = [entry.tree]
                    trees.add(entry.tree)
                elif isinstance(entry, FileEntry):
                    below = [chunk for chunk in entry.chunks if chunk]
                wanted += [digest for digest in below if digest not in objects.stored and digest not in wanted]
    return objects.content_of(bytes.fromhex(root))


def assert_files_travel(stage: Stage, token: str, cluster: str, *, owner: str) -> None:
    """A job under its user's account can use and change its files, and its results come back."""
    tree = upload_tree(stage, {"in": b"word\n", "tool": Executable(b"#!/bin/sh\necho ran\n"), "deep": {}}, token=token)
    script = (
        "stat -c %U . in deep; ./tool; echo more >> in; touch deep/new; umask 077; mkdir results; mv in results/out; "
        'ls -A "$SWITCHYARD_FILES/../.." 2>&1'
    )
    spec = {"files": {"tree": tree, "out": ["results", "deep"]}}
    job = stage.submitted("sh", "-c", script, token=token, cluster=cluster, spec=spec)["id"]
    ended = stage.ended(job, timeout_s=2 * PATIENCE_S)
    said = stage.raw("logs", job)[0].decode().splitlines()
    assert said[:4] == [owner, owner, owner, "ran"], (said, ended)
    assert "Permission denied" in said[4], "the folders of other jobs cannot be listed"
    [output] = outputs_of(stage, job, token=token)
    expected = {b"results": {b"out": b"word\nmore\n"}, b"deep": {b"new": b""}}
    assert read_tree(stage, job, output["root"], token=token) == expected, output
