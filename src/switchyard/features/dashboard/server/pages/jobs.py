"""The list of jobs: filters and groups are in the address, so a view can be sent to a colleague."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from switchyard.features.dashboard.service import job_groups
from switchyard.model.job.job import State
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import ID_CURSOR, VIEW_FILTERS, QueryParameter
from switchyard.server.http.resources.jobs.jobs import read_job_filter
from switchyard.server.pages.formats import count
from switchyard.server.pages.web_page import PageValues, WebPage
from switchyard.service.job import jobs

ROWS = 50  # a page of jobs on a screen
READS_MAX = 40  # of 5,000 jobs each: a page reads on until it is full or has read 200,000 jobs
CHIPS_MAX = 24  # groups that are shown; the rest is one number
SORT_CHOICES = (
    ("oldest", "oldest first"),
    ("priority", "highest priority"),
    ("ran", "ran longest"),
    ("waited", "waited longest"),
    ("name", "name"),
)
SINCE_CHOICES = (("3600", "last hour"), ("86400", "last day"), ("604800", "last week"))
MORE_FIELDS = ("project", "domain", "owner", "cluster", "queue", "workflow", "launch_plan", "label")

QUERY = (
    *VIEW_FILTERS,
    ID_CURSOR,
    QueryParameter("group", about="count by this field", words=job_groups.GROUPED_BY),
    QueryParameter("key", about="of a label: count by its values"),
    QueryParameter("sort", about="another order than newest first", words=job_groups.ORDERS),
    QueryParameter("offset", "integer", "of a sorted list: the first row", most=job_groups.READ_MAX),
)


def load(call: Call) -> PageValues:
    job_filter = read_job_filter(call)
    order, offset = call.text("sort"), call.number("offset", 0)
    later: dict[str, Any] | None
    in_order = None
    if order is not None:
        in_order = job_groups.sorted_jobs(call.context, call.actor, job_filter, order=order, offset=offset, limit=ROWS)
        listed, following = in_order.jobs, in_order.following
        later = {"offset": following} if following is not None else None
    else:
        page = jobs.job_list(
            call.context,
            call.actor,
            job_filter,
            before=call.text("cursor"),
            limit=ROWS,
            with_spec=False,
            reads_max=READS_MAX,
        )
        listed, later = page.items, {"cursor": page.next} if page.next else None
    by = call.text("group") or "state"
    # The counts by state are those of all states, so that each of them can be chosen.
    grouped = replace(job_filter, states=()) if by == "state" else job_filter
    groups = job_groups.count_groups(call.context, call.actor, grouped, by=by, key=call.text("key"))
    filters = _filters(call)
    return {
        "jobs": listed,
        "later": later,
        "is_first": call.text("cursor") is None and not offset,
        "order": order,
        "sort_choices": SORT_CHOICES,
        "sorted_among": in_order.jobs_read if in_order and not in_order.is_whole else None,
        "group_key": call.text("key"),
        "groups": groups,
        "matching": _matching(groups, job_filter.states, key=call.text("key")),
        "chips": groups.counts[:CHIPS_MAX],
        "chips_left": len(groups.counts) - CHIPS_MAX,
        "grouped_by": job_groups.GROUPED_BY,
        "filters": filters,
        "has_filters": bool(set(filters) - {"group", "sort", "key"}),
        "states": [state.value for state in State],
        "chosen_states": [text.upper() for text in call.texts("state")],
        "since_choices": SINCE_CHOICES,
        "more_fields": MORE_FIELDS,
        "has_more_filters": not filters.keys().isdisjoint(MORE_FIELDS),
    }


def _matching(groups: job_groups.JobGroups, states: Sequence[str], *, key: str | None) -> str:
    """How many jobs match the view, in words; empty: the groups do not tell, because a job is in several or in none."""
    if groups.by == "label" and key is None:
        return ""
    is_counted = groups.by != "state" or not states
    total = sum(size for name, size in groups.counts if is_counted or name in states)
    return count(total) if groups.is_whole else f"{count(total)} or more"


def _filters(call: Call) -> dict[str, Any]:
    """The parameters of the view without its place in the list; one that may be repeated is a list."""
    repeatable = {parameter.name for parameter in QUERY if parameter.is_repeatable}
    filters: dict[str, Any] = {}
    for name, value in call.query:
        if name not in ("cursor", "offset"):
            if name in repeatable:
                filters.setdefault(name, []).append(value)
            else:
                filters[name] = value
    return filters


PAGE = WebPage(
    "/jobs",
    "jobs.html",
    title="Jobs",
    load=load,
    query=QUERY,
    live=("chips", "rows"),
    refresh_s=30,
    is_heavy=True,
    menu="Jobs",
)
