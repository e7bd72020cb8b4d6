"""The decision about a job that squeue no longer lists, case by case."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from switchyard.features.slurm.agent.jobs.missing_jobs import (
    AccountingProgress,
    EndKnowledge,
    MissingJob,
    MissingJobDecision,
    decide_missing_job,
)

NONE, BEHIND, CAUGHT_UP = AccountingProgress
WAIT, END, GIVE_BACK, LOST = MissingJobDecision


def job(end: EndKnowledge = EndKnowledge.UNKNOWN, *, is_denied: bool = True, **known: Any) -> MissingJob:
    return MissingJob(end=end, is_denied=is_denied, **known)


BEGUN, UNBEGUN, UNREADABLE = job(has_begun=True), job(has_begun=False), job(has_begun=None)
KILLED = job(EndKnowledge.KILLED, has_begun=True)
OF_ARRAY = job(has_begun=False, is_array_known=True)
CASES = [
    # An end that is known counts, whatever the accounts are like.
    *(
        (job(EndKnowledge.KNOWN, has_begun=has_begun), accounts, END)
        for has_begun in (True, False)
        for accounts in AccountingProgress
    ),
    (job(EndKnowledge.KNOWN, is_denied=False, has_begun=None), BEHIND, END),
    # A moment without the job proves nothing, nor does a folder that cannot be read.
    *((job(is_denied=False, has_begun=has_begun), CAUGHT_UP, WAIT) for has_begun in (True, False)),
    (job(EndKnowledge.KILLED, is_denied=False, has_begun=True), CAUGHT_UP, WAIT),
    *((UNREADABLE, accounts, WAIT) for accounts in AccountingProgress),
    # Accounts that have not provably caught up may still tell the end.
    *((missing, BEHIND, WAIT) for missing in (BEGUN, UNBEGUN, KILLED, OF_ARRAY)),
    # Nobody is left who could tell an end.
    *((BEGUN, accounts, LOST) for accounts in (NONE, CAUGHT_UP)),
    *((KILLED, accounts, END) for accounts in (NONE, CAUGHT_UP)),
    *((UNBEGUN, accounts, GIVE_BACK) for accounts in (NONE, CAUGHT_UP)),
    *((OF_ARRAY, accounts, LOST) for accounts in (NONE, CAUGHT_UP)),
]
OVERDUE = [(BEGUN, LOST), (KILLED, END), (UNBEGUN, GIVE_BACK), (OF_ARRAY, LOST), (UNREADABLE, WAIT)]


@pytest.mark.parametrize(("missing", "accounts", "decision"), CASES)
def test_the_decision(missing: MissingJob, accounts: AccountingProgress, decision: MissingJobDecision) -> None:
    assert decide_missing_job(missing, accounts, is_overdue=False) is decision


@pytest.mark.parametrize(("missing", "decision"), OVERDUE)
def test_the_bound_of_the_site_ends_the_wait_for_the_accounts(
    missing: MissingJob, decision: MissingJobDecision
) -> None:
    assert decide_missing_job(missing, BEHIND, is_overdue=True) is decision


def test_only_a_job_that_began_or_a_task_of_a_known_array_is_lost_and_only_one_that_did_not_begin_is_given_back() -> (
    None
):
    for end, is_denied, has_begun, is_array_known in itertools.product(
        EndKnowledge, (True, False), (True, False, None), (True, False)
    ):
        missing = MissingJob(end=end, is_denied=is_denied, has_begun=has_begun, is_array_known=is_array_known)
        for accounts, is_overdue in itertools.product(AccountingProgress, (True, False)):
            decision = decide_missing_job(missing, accounts, is_overdue=is_overdue)
            if decision is LOST:
                assert has_begun or is_array_known
            if decision is GIVE_BACK:
                assert has_begun is False
            if decision in (LOST, GIVE_BACK):
                assert is_denied
                assert end is EndKnowledge.UNKNOWN
                assert accounts is not BEHIND or is_overdue
