"""`yard announce`: tell all users something, or show what was told."""

from __future__ import annotations

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.cli.terminal.table import Column, print_table
from switchyard.model.wire.api import Page
from switchyard.sdk.client import CoreClient
from yard_announcements.messages import Announcement, NewAnnouncement

EXAMPLES = """\
  yard announce                                what was told
  yard announce "epsilon is down on Friday"    tell it (administrators)"""
PATH = "/v1/announcements"


class AnnouncementClient(CoreClient):
    def announcements(self) -> list[Announcement]:
        return self._get(PATH, Page[Announcement]).items

    def announce(self, text: str) -> Announcement:
        return self._post(PATH, Announcement, body=NewAnnouncement(text))


def main(argv: list[str]) -> int:
    parser = Parser("yard announce", "Tell all users something, or show what was told.", examples=EXAMPLES)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to tell; without it, show what was told")
    add_shared(parser, outputs=("json", "yaml"))
    args = parser.parse_args(argv)
    with connect(args, AnnouncementClient) as yard:
        found = [yard.announce(args.text)] if args.text else yard.announcements()
    if not emit(found, args.output):
        print_table((Column("WHO"), Column("WHAT")), [[each.author, each.text] for each in found])
    return 0
