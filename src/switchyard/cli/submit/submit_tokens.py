"""Submit tokens of a submit: the file of `--clusters`, and the notice of saved tokens that open nothing."""

from __future__ import annotations

from argparse import _ArgumentGroup
from collections.abc import Iterable

from msgspec import Struct

from switchyard.cli.terminal.option_file import read_option_file
from switchyard.cli.terminal.output import print_notice
from switchyard.cli.terminal.parser import Parser
from switchyard.errors import Malformed
from switchyard.model.job.job import ClusterToken
from switchyard.model.wire.decode import convert, load_yaml

FILE_BYTES_MAX = 1 << 20  # as of the user's file: ten thousand cluster tokens fit
FORM_STEP = "It holds `clusters: [{name: alpha, token: submit_…}]`. To name one cluster alone: --cluster NAME."


class _ClustersFile(Struct, frozen=True):
    """What counts of the file. Others who read it, such as Rainbow's client, have further keys."""

    clusters: list[ClusterToken] = []


def add_clusters(parser: Parser | _ArgumentGroup) -> None:
    parser.add_argument(
        "--clusters",
        metavar="FILE",
        help="only the clusters that this file names, each with its submit token: clusters: [{name, token}]",
    )


def read_clusters(file: str | None) -> list[ClusterToken] | None:
    """Read the clusters that a submit may go to, with their tokens. None: no file is given."""
    if file is None:
        return None
    text = read_option_file(file, "--clusters", bytes_max=FILE_BYTES_MAX)
    try:
        clusters = convert(load_yaml(text, where=file), _ClustersFile, where=file).clusters
    except Malformed as exc:
        raise Malformed(exc.detail, next_step=FORM_STEP) from exc
    if not clusters:
        raise Malformed(f"{file} names no clusters.", next_step=FORM_STEP)
    return clusters


def print_stale_tokens(names: Iterable[str]) -> None:
    """Say which saved submit tokens open nothing any more, and what to do: submits go on without them."""
    from switchyard.sdk.transport.config import config_path

    for name in dict.fromkeys(names):
        print_notice(f"The submit token that you saved for {name} opens no cluster any more: submits go without it.")
        print_notice(
            f"next: Remove it under `clusters:` in {config_path()}, or put a new one there; an administrator of {name} "
            f"makes it (`yard cluster token {name}`)."
        )
