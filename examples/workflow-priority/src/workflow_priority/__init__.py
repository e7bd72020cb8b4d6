"""Workflow priority (10): the priority of jobs that name none themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from switchyard.model.job.job import JobRequest, Priority
from switchyard.policy.draft import REQUEST, Draft, Entry
from switchyard.policy.kinds.kind import Kind, Merge


class WorkflowPriorityValue(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a row. What is not of this form is refused when it is written."""

    priority: Priority


class WorkflowPriority(Kind):
    number = 10
    name = "workflow-priority"
    title = "workflow priority"
    value = WorkflowPriorityValue
    merge = Merge.REPLACE
    sample: ClassVar[dict[str, Any]] = {"priority": 100}

    def amend(self, draft: Draft, found: Mapping[str, Entry]) -> Draft:
        """Called for each job that is admitted, with the fields that hold for its scope."""
        if draft.request.priority:  # the job's own word comes first, and the record of its rules says so
            own = Entry(draft.request.priority, REQUEST)
            return replace(draft, own={**draft.own, (self.name, "priority"): own})
        if not found:
            return draft
        request = replace(draft.request, priority=found["priority"].value)
        return replace(draft, request=request)

    def take_back(self, request: JobRequest, given: Mapping[str, Any]) -> JobRequest:
        """Called for a job that is to run once more: what the rule gave it is not its own word."""
        return replace(request, priority=0) if request.priority == given["priority"] else request
