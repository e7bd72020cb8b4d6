"""Signed addresses for large objects that a user must send: their bytes do not pass through this server.

An address leads to a place for uploads of this user alone. The object store checks the SHA-256 of what comes there, so
what it took under a hash has that hash. The user holds the object once a frame UPLOADED says that it is there
(`intake.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from switchyard.errors import YardError
from switchyard.model.files.file_tree import CHUNK_BYTES
from switchyard.model.files.files import SignedUpload
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import SIGNED_FROM_BYTES, coarse_room, files_refusal
from switchyard.store.files import file_objects


def upload_addresses(
    context: Context, owner: str, sizes: Mapping[bytes, int], *, sender: str, is_agent: bool = False
) -> dict[str, SignedUpload]:
    """Addresses for the large ones of these objects, if the store has any. Raises LimitReached if they do not fit."""
    files = context.files
    # What is larger than a chunk must be a tree: it comes through this server, which looks.
    large = {digest: size for digest, size in sizes.items() if SIGNED_FROM_BYTES <= size <= CHUNK_BYTES}
    addresses: dict[bytes, SignedUpload] = {}
    for digest, size in large.items():
        address = files.store.signed_put(sender, digest, size, valid_s=files.signed_s)
        if address is None:
            return {}
        addresses[digest] = address
    if addresses:
        _reserve(context, owner, large, is_agent=is_agent)
    return {digest.hex(): address for digest, address in addresses.items()}


def _reserve(context: Context, owner: str, sizes: Mapping[bytes, int], *, is_agent: bool) -> None:
    """Check the limit of the user before an address is given out. Addresses that are still open count as well.

    For an agent all objects count as new: a refusal must not say which of them the owner holds.
    """
    limit = context.files.limits.user_bytes
    if not limit:
        return
    with context.database.read() as tx:
        used = file_objects.usage_get(tx, owner)
        # Objects that the store has lost are in `used`.
        counted = set() if is_agent else file_objects.holdings(tx, owner, sizes)
    new = {digest: size for digest, size in sizes.items() if digest not in counted}
    excess = context.files.grants.reserve(
        owner,
        new,
        room=coarse_room(limit, used) if is_agent else limit - used,
        now_us=context.steady_us(),
        valid_us=context.files.signed_s * 1_000_000,
    )
    if excess:
        asked = sum(new.values())
        raise agent_limit_refusal(context, asked) if is_agent else user_limit_refusal(context, used, asked)


def user_limit_refusal(context: Context, used: int, asked: int) -> YardError:
    """The error for a user whose objects would take more than the limit. It is counted."""
    context.tally.uploads_refused.add("user_bytes")
    why = f"the files of this user take {show_bytes(used)}, and these take {show_bytes(asked)} more"
    return files_refusal("user_bytes", context.files.limits.user_bytes, why)


def agent_limit_refusal(context: Context, asked: int) -> YardError:
    """The same for an agent, which is not told how much its job's owner has."""
    context.tally.uploads_refused.add("user_bytes")
    why = f"the job's owner has no room for these {show_bytes(asked)}"
    return files_refusal("user_bytes", context.files.limits.user_bytes, why)
