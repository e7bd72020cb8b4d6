"""The feature, as the core finds it: names of its parts, imported when the rooms that they add to start."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="announcements",
    commands={
        "Server": [("announce", "yard_announcements.command", "Tell all users something, or show what was told")]
    },
    config={"announcements": "yard_announcements.server:AnnouncementsSection"},
    store="yard_announcements.store:AnnouncementStore",
    server="yard_announcements.server:AnnouncementFeature",
)
