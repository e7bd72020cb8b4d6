"""Whether a symbolic link stays inside its tree, also by way of other links. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from switchyard.model.files.file_tree import is_inside
from switchyard.sdk.files.file_names import NamePath

LINKS_FOLLOWED_MAX = 40  # as Linux: more is a loop, which leads nowhere


def stays_inside(links: Mapping[NamePath, bytes], link: NamePath) -> bool:
    """Whether this link of a tree leads to a place inside the tree. `links` has the target of each link by its name."""
    folder, target = link[:-1], links[link]
    if not is_inside(folder, target):
        return False
    place = list(folder)
    ahead = target.split(b"/")[::-1]
    followed = 0
    while ahead:
        name = ahead.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            if not place:
                return False
            place.pop()
            continue
        further = links.get((*place, name))
        if further is None:
            place.append(name)
            continue
        followed += 1
        if followed > LINKS_FOLLOWED_MAX:
            return True
        if further.startswith(b"/"):
            return False
        ahead += further.split(b"/")[::-1]
    return True
