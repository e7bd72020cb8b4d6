"""The names of files that Flyte's clients upload: nobody takes the name of another user's file before it comes."""

from __future__ import annotations

import base64
import hashlib

import pytest
from flyteidl.service.dataproxy_pb2 import CreateUploadLocationRequest

from switchyard.errors import NameTaken
from switchyard.features.flyte.service.executions.calls.data_proxy import DataUpload, create_upload_location, find_grant
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.core.rights import Actor
from tests.service.rig import Rig

# Two contents with the same MD5, by Wang and Yu (2005): six bytes differ by their highest bit.
COLLISION = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f8955ad340609f4b30283e488832571415a"
    "085125e8f7cdc99fd91dbdf280373c5bd8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
)
DIFFERENT_AT = (19, 45, 59, 83, 109, 123)


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


def test_a_content_with_the_same_md5_does_not_take_the_place_of_another(lite: Rig) -> None:
    """Whoever made both would upload one first, and give the other one to somebody who looks at it and uploads it."""
    lite.project("lab")
    ann, eve = (lite.user(name, (Role.SUBMIT, GrantTarget.PROJECT, "lab")) for name in ("ann", "eve"))
    other = bytes(byte ^ 0x80 if at in DIFFERENT_AT else byte for at, byte in enumerate(COLLISION))
    assert (md5_of(other), other != COLLISION) == (md5_of(COLLISION), True)
    name = upload(lite, eve, COLLISION)
    with pytest.raises(NameTaken):
        upload(lite, ann, other)
    assert upload(lite, ann, COLLISION) == name
