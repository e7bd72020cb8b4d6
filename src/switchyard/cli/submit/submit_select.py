"""The options of `yard submit` that choose the selection algorithm and its parameters."""

from __future__ import annotations

import re
from argparse import Namespace
from math import isfinite
from pathlib import Path
from typing import Any

from switchyard.cli.terminal.parser import Parser, add_repeatable, key_value
from switchyard.errors import BadRequest, Malformed

INTEGER_PATTERN = re.compile(r"-?[0-9]{1,19}\Z")
DECIMAL_PATTERN = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3})?\Z")


def add_select(parser: Parser) -> None:
    group = parser.add_argument_group("selection among the clusters that can run it")
    group.add_argument(
        "--select", metavar="NAME", help="weighted, random, least-loaded, constraint … (default: the server's)"
    )
    add_repeatable(
        group, "--select-option", type=key_value, metavar="K=V", help="an option of the algorithm; repeatable"
    )
    group.add_argument("--select-options", metavar="FILE", help="its options, as YAML: priorities: [{priority, steps}]")
    add_repeatable(group, "--parameter", type=key_value, metavar="K=V", help="a value for the algorithm; repeatable")


def select_of(args: Namespace) -> dict[str, Any] | None:
    """Return the algorithm and its options, or None if no flag names one."""
    options = {} if args.select_options is None else _read_options(args.select_options)
    options |= {key: parse_scalar(value) for key, value in args.select_option}
    if args.select is None:
        if options:
            raise BadRequest("--select-option and --select-options go with --select.")
        return None
    return {"name": args.select, "options": options}


def parameters_of(args: Namespace) -> dict[str, Any]:
    return {key: parse_scalar(value) for key, value in args.parameter}


def parse_scalar(text: str) -> bool | int | float | str:
    """Parse true, 3 and 0.5 as bool, int and float. Everything else is text, also what stands in quotes."""
    if text in ("true", "false"):
        return text == "true"
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if INTEGER_PATTERN.match(text):
        return int(text)
    return float(text) if DECIMAL_PATTERN.match(text) and isfinite(float(text)) else text


def _read_options(file: str) -> dict[str, Any]:
    from switchyard.model.wire.decode import load_yaml

    try:
        options = load_yaml(Path(file).read_bytes(), where=file)
    except OSError as exc:
        raise Malformed(f"Cannot read {file}: {exc.strerror}.", next_step="Name a file that is there.") from exc
    if not isinstance(options, dict):
        raise Malformed(f"{file}: expected options such as `priorities:`.")
    return options
