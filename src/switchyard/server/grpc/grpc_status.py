"""An error of ours as the message of a gRPC status. Pure."""

from __future__ import annotations

from switchyard.errors import YardError

MESSAGE_BYTES_MAX = 2000  # in the trailers, encoded up to three times as long; gRPC clients accept 8 kB of trailers


def message_of(error: YardError) -> str:
    detail = error.detail
    if error.next_step:
        detail = f"{detail.rstrip()}{'' if detail.rstrip().endswith('.') else '.'} {error.next_step}"
    content = detail.encode()
    return content[:MESSAGE_BYTES_MAX].decode(errors="ignore")
