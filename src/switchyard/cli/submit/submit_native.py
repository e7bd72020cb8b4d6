"""The options of `yard submit` that go to a batch system as they are: account, QOS, reservation …"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from switchyard.cli.terminal.parser import Parser


def add_native(parser: Parser) -> None:
    group = parser.add_argument_group("for clusters with a batch system")
    group.add_argument("--account", metavar="NAME", help="the account to charge")
    group.add_argument("--qos", metavar="NAME", help="quality of service, by the cluster's own name")
    group.add_argument("--reservation", metavar="NAME", help="run in this reservation")
    group.add_argument("--constraint", metavar="TEXT", help="features of its nodes, in the cluster's words: 'a&b'")
    group.add_argument("--license", action="append", metavar="NAME[:N]", help="a licence; repeatable")
    group.add_argument("--gpu-type", metavar="NAME", help="the type of the GPUs")
    group.add_argument("--exclusive", action="store_true", default=None, help="whole nodes")
    group.add_argument(
        "--option", action="append", metavar="WORD", help="any other option that the site allows: --option=--nice=5"
    )


def native_of(args: Namespace) -> dict[str, Any]:
    """Return the native options that flags set."""
    options = {
        "account": args.account,
        "qos": args.qos,
        "reservation": args.reservation,
        "constraint": args.constraint,
        "licenses": args.license,
        "gpu_type": args.gpu_type,
        "exclusive": args.exclusive,
        "options": args.option,
    }
    return {name: value for name, value in options.items() if value is not None}
