"""The options of `yard submit` that say how a job is retried."""

from __future__ import annotations

import argparse
from argparse import Namespace
from typing import Any

from switchyard.cli.terminal.parser import Parser, add_repeatable
from switchyard.model.failures.retry_text import parse_rules
from switchyard.model.job.retry import Cause

_CAUSES = frozenset(Cause)


def retry_of(args: Namespace) -> dict[str, Any]:
    """Return the retry policy that flags set."""
    causes: list[str] = []
    rules: list[str] = []
    for text in args.retry_on:
        words = text.split(",")
        if all(word in _CAUSES for word in words):
            causes += words
        else:
            rules.append(text)
    retry = {
        "limit": args.retry,
        "causes": causes or None,
        "exit_codes": args.retry_exit_codes,
        "backoff": args.backoff,
        "backoff_max": args.backoff_max,
        "on": parse_rules(rules) or None,
    }
    return {name: value for name, value in retry.items() if value is not None}


def add_retry(group: Parser | argparse._ArgumentGroup) -> None:
    group.add_argument("--retry", type=int, metavar="N", help="at most this many retries")
    add_repeatable(
        group,
        "--retry-on",
        metavar="CAUSE|RULE",
        help="after these causes: job, cluster or lost (default all three); or a rule for a kind of failure, with its "
        "own number of retries: out-of-memory:2,memory=x2,memory-max=256GiB or node-lost:5,elsewhere; repeatable",
    )
    group.add_argument(
        "--retry-exit-codes", metavar="CODES", help="retry the job's own failures only with these: 1,75,100-120"
    )
    group.add_argument("--backoff", metavar="T", help="pause before the first retry; it doubles (default 10s)")
    group.add_argument("--backoff-max", metavar="T", help="the longest pause (default 10m)")
