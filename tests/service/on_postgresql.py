"""Which tests of the services run on PostgreSQL in `make test`, too: all others run there in `make soak` only.

They were chosen by what they send: every statement that any test of the services sends to PostgreSQL is sent by these,
by tests/store, tests/contracts or tests/server. Whole files are those whose subject differs between the databases, or
that lock: claims and leases, bulk writes, the committer, leaders, lists with their order and cursors, JSON, retention,
and what a restore or a damaged row leaves.
"""

from __future__ import annotations

# The beginnings of their paths in tests/service.
FILES = (
    *("access/", "entities/", "job/", "rules/test_attributes.py", "submit/test_bulk_pieces", "submit/test_submit.py"),
    *("cluster/test_join", "cluster/test_layout", "cluster/test_queue_settings", "cluster/test_served_namespaces"),
    *("executions/test_cache_holders", "executions/test_list_filters", "executions/test_retention"),
    *("files/test_collection", "files/test_signed_uploads", "files/test_upload_room"),
    *("run/test_lease.py", "run/test_pollers", "run/test_refused_arrays", "run/test_report", "run/test_restored"),
    *("test_clock", "test_committer", "test_statements", "test_stored_fields", "test_unreadable"),
    *("upkeep/test_leadership", "upkeep/test_retention", "upkeep/test_sample_clusters", "upkeep/test_spill"),
)
# Of other files those tests that send what nothing else does, or from two servers.
TESTS = {
    "cluster/test_group_invites.py": ("test_all_of_it_is_in_the_audit_and_no_secret",),
    "cluster/test_leave.py": ("test_a_cluster_that_no_agent_can_join_is_removed",),
    "cluster/test_pilots.py": (
        "test_a_pilot_that_does_not_start_in_time_is_cancelled_and_told_why",
        "test_a_pilots_jobs_get_time_to_end_after_its_job",
    ),
    "cluster/test_states.py": ("test_values_set_by_hand_are_bounded",),
    "executions/test_map_bounds.py": (
        "test_a_map_of_one_part_and_one_element_more_is_looked_up_in_two_steps",
        "test_a_map_without_room_says_what_it_waits_for",
        "test_an_element_that_crashes_is_told_with_its_exit_code",
    ),
    "executions/test_placement.py": (
        "test_executions_of_launch_plan_nodes_stay_together",
        "test_tasks_that_fit_no_common_cluster_are_told_with_what_each_fits",
    ),
    "executions/test_schedules.py": ("test_a_schedule_ends_with_its_plan_and_changes_with_its_version",),
    "executions/test_turns.py": ("test_executions_created_at_once_keep_to_the_concurrency_policy",),
    "executions/test_unfinished_steps.py": ("test_what_a_given_up_execution_had_begun_ends",),
    "executions/test_views.py": (
        "test_a_page_reads_a_bounded_number_of_rows",
        "test_an_execution_runs_again_in_another_pool",
        "test_lists_are_newest_first_in_pages_and_filters_apply",
        "test_nodes_say_what_they_wait_for",
        "test_readers_see_the_executions_of_their_projects_without_hidden_clusters",
        "test_the_ends_of_children_are_read_within_a_bound",
    ),
    "files/test_files_of_arrays.py": (
        "test_tasks_tell_where_their_output_files_are_and_which_never_began",
        "test_the_files_of_all_tasks_travel_after_their_array_was_taken_back",
    ),
    "files/test_lost_objects.py": ("test_an_object_that_is_found_again_is_not_asked_for",),
    "files/test_submit_with_files.py": (
        "test_bulk_jobs_with_files_are_checked_one_by_one_or_together",
        "test_outputs_of_tasks_are_listed_by_task_and_in_pages",
        "test_trees_over_the_limit_of_a_project_are_refused_and_outputs_over_it_too",
    ),
    "files/test_unsent_outputs.py": (
        "test_outputs_of_no_known_agent_are_given_up_with_the_last_agent_of_their_cluster",
    ),
    "quote/test_quotes.py": (
        "test_a_cluster_that_says_now_and_is_always_late_loses_its_jobs",
        "test_what_is_old_is_removed",
    ),
    "quote/test_quotes_silent.py": ("test_a_no_stands_when_the_other_agent_is_silent",),
    "rules/test_attributes_of_jobs.py": (
        "test_a_job_that_waits_for_longer_than_its_budget_is_reported_late_once",
        "test_a_preempted_job_that_is_not_interruptible_is_left_to_its_retries",
        "test_what_was_deleted_long_ago_is_forgotten",
    ),
    "run/test_lease_owners.py": ("test_a_job_that_may_have_begun_is_delivered_again_and_its_end_asked_for",),
    "run/test_spread_arrays.py": (
        "test_agents_of_all_clusters_in_one_batch_share_the_tasks",
        "test_an_array_is_listed_for_every_cluster_that_has_tasks_of_it",
        "test_clusters_join_and_leave_as_pools_and_weights_change",
    ),
    "token/test_token_queues.py": (
        "test_a_job_that_goes_by_quotes_asks_again_only_when_it_can_go",
        "test_a_place_and_a_token_are_taken_together_and_given_back_together",
        "test_an_array_takes_its_tokens_with_its_first_place",
        "test_one_that_asks_for_more_than_there_is_keeps_nobody_waiting",
        "test_one_that_registers_again_after_a_restart_opens_nothing_early",
    ),
    "run/test_learning_retries.py": (
        "test_each_attempt_asks_for_more_and_says_so",
        "test_failures_are_counted_once_by_what_one_asks_for",
    ),
    "probation/test_probation.py": (
        "test_evidence_about_one_user_is_bounded_and_forgotten",
        "test_it_comes_back_when_canaries_do_well",
        "test_plain_jobs_leave_a_black_hole",
        "test_two_owners_close_a_cluster_for_all_but_not_while_a_third_does_well",
    ),
    "upkeep/test_chores.py": (
        "test_a_waiting_job_that_turns_out_to_fit_nowhere_is_rejected",
        "test_an_agent_that_leased_and_was_never_seen_again_is_judged_too",
        "test_one_who_leaves_hands_over_at_once",
    ),
    "upkeep/test_moving.py": (
        "test_what_waits_at_a_cordoned_cluster_waits_with_the_reason_and_goes_at_once_when_it_is_back",
    ),
    "upkeep/test_moving_arrays.py": ("test_an_array_that_is_begun_rests_no_longer_for_what_was_before",),
    "upkeep/test_render_namespaces.py": (
        "test_a_namespace_that_is_no_longer_wanted_is_shown_until_its_agent_says_that_it_is_gone",
        "test_an_empty_or_missing_folder_deletes_nothing",
        "test_every_agent_of_kubernetes_gets_the_objects_of_all_projects",
    ),
    "upkeep/test_together_arrays.py": (
        "test_on_lost_decides_when_the_cluster_of_an_array_together_is_removed",
        "test_tasks_that_a_drained_cluster_has_not_begun_keep_the_others_until_they_come_back",
    ),
}
_BEGINNINGS = (*FILES, *(f"{file}::{test}" for file, tests in TESTS.items() for test in tests))


def is_on_postgresql_too(name: str) -> bool:
    """Whether `make test` runs this test on PostgreSQL. `name`: from its path in tests/service on."""
    return name.startswith(_BEGINNINGS)
