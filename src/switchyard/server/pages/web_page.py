"""What a page of the dashboard is: its address, its template, what it reads, and which parts of it are live."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import QueryParameter

PageValues = Mapping[str, Any]


@dataclass(frozen=True)
class WebPage:
    """One page. `load` is sync and runs on a thread; it returns the values of the template.

    `live`: blocks of the template that open pages get again when they have changed. `refresh_s`: how often the server
    looks without an event, because loads and healths of clusters are no events. `pause_s`: at least between two
    renderings. `is_same_for_viewers`: the live blocks are equal for all who may view the platform and have the same
    roles on clusters; their streams share each rendering. `still_query`: parameters that change no live block.
    """

    path: str
    template: str
    title: str
    load: Callable[[Call], PageValues]
    query: tuple[QueryParameter, ...] = ()
    live: tuple[str, ...] = ()
    refresh_s: float = 10.0
    pause_s: float = 1.0
    is_heavy: bool = False
    is_same_for_viewers: bool = False
    still_query: tuple[str, ...] = ()
    menu: str = ""  # what the navigation of all pages calls it; empty: it is not there
    templates: str = ""  # the package whose folder `templates` has the template; empty: the dashboard's
    filters: Mapping[str, Callable[..., Any]] = field(
        default_factory=dict
    )  # that the template uses besides the common ones

    def without_menu(self) -> WebPage:
        return replace(self, menu="")


def without_empty_fields(call: Call) -> Call:
    """The call without empty parameters: a form sends all of its fields."""
    return replace(call, query=[(name, value) for name, value in call.query if value])
