"""The options of `yard submit` that say how a job is retried."""

from __future__ import annotations

import argparse
from argparse import Namespace
from typing import Any

from switchyard.cli.terminal.parser import Parser, add_repeatable, int_or_text
from switchyard.errors import BadRequest
from switchyard.model.failures.failure_kind import unknown_failure
from switchyard.model.job.retry import Cause

_CAUSES = frozenset(Cause)
_VALUES = ("memory", "memory-max", "time", "time-max")
_NEXT_STEP = (
    "Write it as in --retry-on out-of-memory:2,memory=x2,memory-max=256GiB or --retry-on node-lost:5,elsewhere."
)


def retry_of(args: Namespace) -> dict[str, Any]:
    """Return the retry policy that flags set."""
    causes: list[str] = []
    rules: dict[str, dict[str, Any]] = {}
    for text in args.retry_on:
        words = text.split(",")
        if all(word in _CAUSES for word in words):
            causes += words
            continue
        kind, rule = _rule(words)
        if kind in rules:
            raise BadRequest(f"--retry-on has a rule for {kind} twice.", next_step="Give one rule for each kind.")
        rules[kind] = rule
    retry = {
        "limit": args.retry,
        "causes": causes or None,
        "exit_codes": args.retry_exit_codes,
        "backoff": args.backoff,
        "backoff_max": args.backoff_max,
        "on": rules or None,
    }
    return {name: value for name, value in retry.items() if value is not None}


def _rule(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Parse `KIND[:LIMIT]` and the words after it."""
    kind, colon, limit = words[0].partition(":")
    if problem := unknown_failure(kind):
        raise BadRequest(f"--retry-on: {problem}. The causes are {', '.join(Cause)}.", next_step=_NEXT_STEP)
    rule: dict[str, Any] = {}
    if colon:
        if not (limit.isascii() and limit.isdigit()):
            raise BadRequest(f"--retry-on {kind}: {limit[:40]!r} is not a number of retries.", next_step=_NEXT_STEP)
        rule["limit"] = int(limit[:9])
    for word in words[1:]:
        name, sign, value = word.partition("=")
        field = name.replace("-", "_")
        is_known = (name in _VALUES and value) or (word == "elsewhere")
        if not is_known or field in rule:
            twice = f"{name} is there twice" if field in rule else f"{word[:40]!r} is not known here"
            known = ", ".join(("elsewhere", *(f"{known}=…" for known in _VALUES)))
            raise BadRequest(f"--retry-on {kind}: {twice}; after the kind come {known}.", next_step=_NEXT_STEP)
        rule[field] = int_or_text(value) if sign else True
    return kind, rule


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
