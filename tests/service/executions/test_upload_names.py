"""The names of files that Flyte's clients upload: nobody takes the name of another user's file before it comes."""

from __future__ import annotations

import base64
import hashlib

import pytest
from flyteidl.service.dataproxy_pb2 import CreateUploadLocationRequest

from switchyard.errors import NameTaken
from switchyard.model.access import GrantTarget, Role
from switchyard.service.core.rights import Actor
from switchyard.service.executions.data_proxy import DataUpload, create_upload_location, find_grant
from tests.service.rig import Rig


def md5_of(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def upload(rig: Rig, actor: Actor, content: bytes, root: str = "", *, is_announced: bool = True) -> str:
    """Upload a file as a client does. Returns its name for ever."""
    request = CreateUploadLocationRequest(
        project="lab",
        domain="development",
        filename="bundle.tar.gz",
        filename_root=root,
        content_md5=md5_of(content) if is_announced else b"",
    )
    address = create_upload_location(rig.context, actor, request)
    intake = DataUpload(rig.context, find_grant(rig.context, address.token, "PUT"))
    intake.feed(content)
    intake.end()
    return address.native_url


def test_nobody_takes_the_name_of_another_users_upload(lite: Rig) -> None:
    lite.project("lab")
    ann, eve = (lite.user(name, (Role.SUBMIT, GrantTarget.PROJECT, "lab")) for name in ("ann", "eve"))
    code, by_content = b"code of ann", base64.b32encode(md5_of(b"code of ann")).decode().rstrip("=")
    for root in ("release-1", by_content, "notes"):
        upload(lite, eve, b"evil", root, is_announced=root != "notes")
    upload(lite, ann, b"notes of ann", "notes", is_announced=False)
    assert upload(lite, ann, code, "release-1") == upload(lite, ann, code, "release-1")
    with pytest.raises(NameTaken):
        upload(lite, ann, b"other code", "release-1")
    # The name of a bundle without a folder is the same for all who upload the same content.
    assert upload(lite, ann, code) == upload(lite, eve, code)
    assert by_content in upload(lite, ann, code)
