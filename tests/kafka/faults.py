"""Faults of Kafka, and the tests that show how the library handles each.

The lines are like those of tests/test_fault_catalogue.py, which checks that the tests exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

BROKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "A broker is killed in the middle of a fetch, and comes back: nothing is lost or repeated.": (
        "tests/kafka/test_source_faults.py::test_a_broker_that_is_killed_and_leads_again_loses_and_repeats_nothing",
        "tests/kafka/test_client_failures.py::test_a_broker_killed_in_mid_fetch_is_an_error_and_found_again_when_it_is_back",
    ),
    "A broker hangs with its connections open: it is waited for.": (
        "tests/kafka/test_source_faults.py::test_a_broker_that_hangs_is_waited_for",
        "tests/kafka/test_client_failures.py::test_a_broker_that_hangs_times_out_and_answers_again_when_it_runs",
        "tests/kafka/test_client_failures.py::test_closing_does_not_wait_for_a_broker_that_hangs",
    ),
    "A leader is elected anew, here or on another broker: it is found, and read on.": (
        "tests/kafka/test_source_faults.py::test_a_broker_that_is_killed_and_leads_again_loses_and_repeats_nothing",
        "tests/kafka/test_fetcher.py::test_a_leader_that_has_moved_is_found_with_one_look_for_all_partitions",
        "tests/kafka/test_client_moves.py::test_a_leader_that_has_moved_is_learnt_when_offsets_are_asked_for_again",
        "tests/kafka/test_subscription.py::test_a_look_up_that_is_refused_asks_for_the_leader_anew",
    ),
    "A partition has no leader for a while: the cluster is not asked without a pause.": (
        "tests/kafka/test_fetcher.py::test_while_nobody_leads_the_cluster_is_asked_at_most_every_half_second",
    ),
    "A leader sends us to a replica that is near, and that one fails or lags behind.": (
        "tests/kafka/test_client_moves.py::test_a_replica_that_the_leader_names_is_read_until_it_fails",
        "tests/kafka/test_client_moves.py::test_an_offset_that_a_replica_lacks_is_asked_of_the_leader",
        "tests/kafka/test_fetcher.py::test_a_partition_that_another_broker_is_to_be_asked_for_is_asked_for_there",
    ),
    "A request fails, or one partition of it: each reader that asked goes on where it stood.": (
        "tests/kafka/test_fetcher.py::test_a_request_that_fails_is_the_error_of_all_who_asked_and_the_next_one_is_sent",
        "tests/kafka/test_fetcher.py::test_an_error_of_one_partition_is_told_to_it_alone",
        "tests/kafka/test_fetcher.py::test_a_partition_without_an_answer_is_an_error",
        "tests/kafka/test_subscription.py::test_a_refusal_ends_the_subscription_and_the_next_one_goes_on_where_it_stood",
    ),
    "A broker throttles for a quota: it is asked again when it says, and other brokers go on.": (
        "tests/kafka/test_throttling.py::test_a_real_broker_that_throttles_is_read_without_a_resubscription",
        "tests/kafka/test_throttling.py::test_an_answer_without_topics_is_throttled",
        "tests/kafka/test_throttling.py::test_an_answer_that_throttles_and_has_records_delivers_them",
        "tests/kafka/test_throttling.py::test_other_brokers_go_on_while_one_throttles",
        "tests/kafka/test_throttling.py::test_a_partition_that_is_throttled_for_long_is_not_silent",
        "tests/kafka/test_throttling.py::test_a_request_waits_until_the_broker_reads_it",
    ),
    "An answer breaks off, or breaks Kafka's protocol: an error that says so, and closes.": (
        "tests/kafka/protocol/test_broker_connection.py::test_a_connection_that_breaks_within_an_answer_fails_all_that_wait",
        "tests/kafka/protocol/test_broker_connection.py::test_what_breaks_the_protocol_is_an_error_that_says_so_and_closes",
        "tests/kafka/protocol/test_frames.py::test_what_a_frame_announces_takes_no_memory_before_it_comes",
    ),
    "No broker answers when the stream opens: one clear sentence.": (
        "tests/kafka/test_source_faults.py::test_no_broker_is_one_clear_sentence",
        "tests/kafka/test_client_failures.py::test_a_broker_that_answers_is_found_behind_one_that_does_not",
        "tests/kafka/test_client_failures.py::test_another_service_at_the_port_is_an_error_not_a_hang",
    ),
    "Access is refused, at first or later: the error says what to grant.": (
        "tests/kafka/test_policy.py::test_each_error_of_kafka_means_what_was_decided",
        "tests/kafka/test_policy.py::test_a_refusal_says_what_to_grant",
        "tests/kafka/test_client_security.py::test_a_wrong_password_is_an_error_that_is_final",
        "tests/kafka/test_data_loss.py::test_a_topic_that_we_may_not_see_any_more_is_no_loss",
    ),
    "Errors and the log show everything but passwords and records.": (
        "tests/kafka/test_secrets.py::test_a_record_that_ends_a_stream_is_not_quoted",
        "tests/kafka/test_secrets.py::test_a_cluster_that_cannot_be_reached_tells_no_secret",
        "tests/kafka/test_client_security.py::test_no_secret_and_no_record_is_logged",
    ),
    "A broker answers with an error that the policy does not know.": (
        "tests/kafka/test_policy.py::test_every_error_that_aiokafka_knows_is_decided_on",
        "tests/kafka/test_policy.py::test_an_error_that_aiokafka_gains_is_judged_by_whether_it_passes",
    ),
    "A token of OAuth expires, or cannot be had for a while.": (
        "tests/kafka/test_client_security.py::test_a_token_that_has_expired_is_refused",
        "tests/kafka/test_client_security.py::test_a_token_that_cannot_be_had_is_tried_again",
    ),
    "A Spark driver is killed, by SIGKILL, at any moment of a batch: exactly the same rows.": (
        "tests/spark/test_killed_driver_on_kafka.py::test_the_batch_comes_again_with_the_same_rows",
        "tests/spark/test_killed_driver_on_kafka.py::test_a_segment_without_an_entry_is_drained_again_and_removed",
    ),
    "A stream is cancelled or closed anywhere: nothing is left behind.": (
        "tests/kafka/test_source_faults.py::test_cancelling_leaves_nothing_behind_wherever_it_strikes",
        "tests/kafka/test_source_faults.py::test_closing_leaves_nothing_behind",
        "tests/kafka/test_fetcher.py::test_leaving_the_block_ends_all_requests_however_often_somebody_asks_again",
        "tests/kafka/test_client_failures.py::test_a_call_that_is_cancelled_leaves_nothing_and_the_next_has_its_own_answer",
    ),
}

TOPICS: Final[Mapping[str, tuple[str, ...]]] = {
    "Partitions are added while a topic is read: they are read from their beginning.": (
        "tests/kafka/test_source_topics.py::test_partitions_that_are_added_are_read_from_their_beginning",
        "tests/kafka/test_source_topics.py::test_without_discovery_partitions_that_are_added_are_not_read",
    ),
    "A pattern gains a topic, or matches none yet.": (
        "tests/kafka/test_source_topics.py::test_a_pattern_finds_a_topic_that_is_created_later",
        "tests/kafka/test_source_topics.py::test_a_pattern_that_nothing_matches_yet_waits",
    ),
    "A topic is deleted: an error, or the others go on.": (
        "tests/kafka/test_source_topics.py::test_a_topic_that_is_deleted_fails_the_stream",
        "tests/kafka/test_source_topics.py::test_the_others_go_on_when_a_topic_is_deleted_where_that_is_allowed",
    ),
    "A topic is deleted and created again, and ends before the position.": (
        "tests/kafka/test_source_topics.py::test_a_smaller_topic_of_the_same_name_fails_the_stream",
        "tests/kafka/test_source_topics.py::test_a_smaller_topic_of_the_same_name_is_read_once_where_that_is_allowed",
        "tests/kafka/test_source_topics.py::test_what_is_available_now_of_a_smaller_topic_of_the_same_name_is_not_taken_for_read",
        "tests/kafka/test_source_topics.py::test_a_topic_that_comes_back_is_read_from_its_beginning",
    ),
    "A broker that has just started does not know a topic or an offset yet: no false alarm.": (
        "tests/kafka/test_data_loss.py::test_a_topic_that_is_not_known_for_a_moment_is_no_loss",
        "tests/kafka/test_data_loss.py::test_an_end_that_is_short_only_for_a_moment_is_no_loss",
        "tests/kafka/test_data_loss.py::test_a_loss_is_declared_after_several_looks_over_some_seconds_and_not_before",
        "tests/kafka/test_data_loss.py::test_looks_in_quick_succession_are_one_look",
        "tests/kafka/test_connection.py::test_a_topic_that_is_not_known_now_and_then_is_not_taken_for_lost",
    ),
    "Records expire before they are read, also those of the very first position.": (
        "tests/kafka/test_source_topics.py::test_records_that_expire_before_they_are_read_fail_the_stream",
        "tests/kafka/test_source_topics.py::test_records_that_expire_are_a_gap_where_that_is_allowed",
        "tests/kafka/test_subscription.py::test_the_horizon_is_told_as_the_offset_that_it_is_before_anything_is_read",
    ),
    "A topic is added to a stream with stored positions, or left out of it.": (
        "tests/kafka/test_source_topics.py::test_a_topic_that_is_chosen_later_is_read_from_its_beginning",
        "tests/kafka/test_source_topics.py::test_a_topic_that_is_no_longer_chosen_keeps_its_positions_unread",
    ),
    "Stored positions meet another cluster: they are refused.": (
        "tests/kafka/test_source_topics.py::test_positions_of_another_cluster_are_refused",
    ),
    "The brokers' addresses lead to another cluster while it is read: an error for good.": (
        "tests/kafka/test_client_moves.py::test_another_cluster_at_the_same_addresses_is_an_error_for_good",
    ),
    "A topic or a partition that is named does not exist.": (
        "tests/kafka/test_source_topics.py::test_a_topic_that_does_not_exist_is_refused_by_name",
        "tests/kafka/test_source_topics.py::test_a_partition_that_does_not_exist_is_refused_by_name",
        "tests/kafka/test_client.py::test_a_topic_that_does_not_exist_has_its_own_error_and_is_not_created",
    ),
    "A topic is empty, or some of its partitions are: nothing waits for them.": (
        "tests/kafka/test_source_records.py::test_partitions_without_records_hold_nobody_up",
        "tests/kafka/test_source_stops.py::test_a_bounded_read_of_nothing_ends",
        "tests/kafka/test_subscription.py::test_an_empty_partition_says_at_once_that_it_is_read_to_its_end",
    ),
}

RECORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "A record of a share group waits beyond its lock each time: its last delivery is handed out.": (
        "tests/kafka/share/test_last_delivery.py::test_what_always_comes_too_late_is_delivered_before_it_is_dropped",
        "tests/kafka/share/test_last_delivery.py::test_what_waited_for_the_consumer_for_too_long_is_handed_out_if_it_is_the_last_time",
        "tests/kafka/share/test_last_delivery.py::test_what_a_member_had_when_it_failed_is_handed_out_if_it_is_the_last_time",
        "tests/kafka/share/test_last_delivery.py::test_what_cannot_be_decoded_for_long_is_delivered_before_it_is_dropped",
    ),
    "Open, aborted and committed transactions lie in one partition.": (
        "tests/kafka/test_source_records.py::test_aborted_and_open_transactions_are_not_seen",
        "tests/kafka/reading/test_records.py::test_an_aborted_transaction_is_left_out_up_to_its_marker_and_not_beyond",
        "tests/kafka/reading/test_records.py::test_the_marker_is_seen_where_the_transaction_lies_before_the_wanted_offset",
        "tests/kafka/reading/test_records.py::test_only_the_marker_of_an_abort_ends_what_is_left_out",
    ),
    "Compaction leaves holes, and batches without records.": (
        "tests/kafka/test_source_stops.py::test_records_that_compaction_has_removed_are_not_waited_for",
        "tests/kafka/reading/test_records.py::test_compacted_holes_and_empty_batches_move_the_position",
        "tests/kafka/reading/test_records.py::test_a_control_batch_that_compaction_has_emptied_ends_nothing",
    ),
    "A batch begins before the offset that is wanted, or is cut short.": (
        "tests/kafka/reading/test_records.py::test_a_batch_that_begins_before_the_wanted_offset_is_trimmed",
        "tests/kafka/reading/test_records.py::test_a_batch_that_is_cut_short_is_left_to_the_next_answer",
    ),
    "Keys and values are null or empty, headers repeat or have no value.": (
        "tests/kafka/test_source_records.py::test_keys_and_values_may_be_missing_or_empty",
        "tests/kafka/test_source_records.py::test_a_record_arrives_with_all_its_columns",
    ),
    "The key of a header is no text: its record comes all the same.": (
        "tests/kafka/reading/test_records.py::test_a_headers_key_that_is_no_text_has_marks_for_its_bytes",
    ),
    "Records come in every codec, from librdkafka, from Kafka's own producer and from others.": (
        "tests/kafka/test_source_records.py::test_every_codec_is_read",
        "tests/spark/test_kafka_java.py::test_every_codec_of_the_java_producer_is_read",
        "tests/kafka/reading/test_records.py::test_a_batch_of_each_codec_becomes_the_columns_of_sparks_kafka_source",
        "tests/kafka/reading/test_records.py::test_a_missing_codec_says_what_to_install",
    ),
    "A value has 10 MiB, more than is asked for at once.": (
        "tests/kafka/test_source_records.py::test_large_values_are_read_whole",
        "tests/kafka/test_fetcher.py::test_a_batch_larger_than_what_was_asked_comes_in_the_end",
        "tests/kafka/test_fetcher.py::test_an_event_larger_than_half_of_the_memory_is_let_through_by_idle_partitions",
    ),
    "A little batch would decompress to more than is allowed: refused before memory is taken.": (
        "tests/kafka/reading/test_records.py::test_a_bomb_is_refused_before_its_memory_is_taken",
        "tests/kafka/reading/test_records.py::test_a_bomb_of_many_little_records_is_refused",
        "tests/kafka/reading/test_compression.py::test_a_batch_may_hold_as_much_as_is_allowed_and_no_more",
    ),
    "A batch is damaged: what comes before it is delivered once, then an error names the place.": (
        "tests/kafka/reading/test_records.py::test_a_damaged_batch_is_named_by_its_offsets_after_what_came_before_it",
        "tests/kafka/test_subscription.py::test_a_damaged_batch_is_an_error_and_what_comes_before_it_is_delivered_once",
        "tests/kafka/reading/test_record_properties.py::test_damaged_bytes_are_records_or_a_typed_error",
    ),
    "The broker sets the timestamps, or there are none.": (
        "tests/kafka/test_source_records.py::test_a_broker_may_set_the_timestamps",
        "tests/kafka/reading/test_records.py::test_a_timestamp_that_is_none_or_has_no_date_is_null",
    ),
    "The consumer is slow: who does not ask is not fetched, and memory is reserved before.": (
        "tests/kafka/test_fetcher.py::test_who_does_not_ask_is_not_fetched",
        "tests/kafka/test_fetcher.py::test_the_allowances_of_all_partitions_take_half_of_the_memory_at_the_most",
        "tests/kafka/test_subscription.py::test_what_is_asked_for_is_reserved_before_and_a_larger_answer_before_it_is_decoded",
    ),
    "Busy partitions fill every answer: none beside them starves.": (
        "tests/kafka/test_fetcher.py::test_no_partition_starves_behind_others_that_fill_every_answer",
        "tests/kafka/test_fetcher.py::test_a_busy_partition_among_a_thousand_idle_ones_keeps_its_rate_and_all_are_heard_of",
    ),
    "The user's decode fails: the error names the partition and its offsets, and no data.": (
        "tests/kafka/test_source_records.py::test_an_error_of_decode_names_the_place_and_no_data",
        "tests/kafka/test_decode.py::test_an_error_of_the_users_decode_names_the_partition_and_its_offsets",
    ),
    "Partitions are of different ages: each has its own watermark, and idle ones are left out.": (
        "tests/kafka/test_source_records.py::test_each_partition_has_its_own_watermark_and_the_stream_the_least",
        "tests/core/test_watermarks.py::test_an_idle_split_is_left_out_until_it_has_a_record_again",
    ),
}

OFFSETS: Final[Mapping[str, tuple[str, ...]]] = {
    "A read begins at every place that has a name, and at those of a mapping or a function.": (
        "tests/kafka/test_source_starts.py::test_earliest_is_where_nothing_is_said",
        "tests/kafka/test_source_starts.py::test_latest_is_the_end_when_the_stream_opens",
        "tests/kafka/test_source_starts.py::test_a_time_begins_with_the_first_record_that_is_not_older",
        "tests/kafka/test_source_starts.py::test_each_partition_can_begin_elsewhere",
        "tests/kafka/test_source_starts.py::test_a_function_can_choose",
        "tests/kafka/test_source_starts.py::test_the_commits_of_a_group_are_a_start",
    ),
    "A time is younger than every record: the end as it was before it was looked up.": (
        "tests/kafka/test_source_starts.py::test_a_time_after_the_last_record_begins_at_the_end",
    ),
    "A group has committed nothing: an error, or the reset that was chosen.": (
        "tests/kafka/test_source_starts.py::test_without_a_commit_and_a_reset_there_is_no_start",
        "tests/kafka/test_source_starts.py::test_a_reset_is_for_partitions_without_a_commit",
    ),
    "A first attempt fails after its start was found: the start stays where it was.": (
        "tests/kafka/test_source_starts.py::test_latest_stays_where_it_was_when_the_origin_was_stored",
    ),
    "A read ends at every place that has a name, and a later one goes on there.": (
        "tests/kafka/test_source_stops.py::test_latest_is_the_end_when_the_stream_opens",
        "tests/kafka/test_source_stops.py::test_an_offset_is_the_first_that_is_not_read",
        "tests/kafka/test_source_stops.py::test_a_time_stops_before_the_first_record_that_is_not_older",
        "tests/kafka/test_source_stops.py::test_the_commits_of_a_group_are_a_stop",
        "tests/kafka/test_source_stops.py::test_positions_at_the_stop_go_on_in_a_later_run",
    ),
    "A stop lies behind an aborted transaction, its marker or an open one: the read ends.": (
        "tests/kafka/test_source_stops.py::test_a_bounded_read_ends_behind_an_aborted_tail",
        "tests/kafka/test_source_stops.py::test_a_bounded_read_ends_before_an_open_transaction",
        "tests/kafka/test_subscription.py::test_a_bounded_read_ends_behind_the_marker_of_a_transaction",
    ),
    "A read begins at its stop, or beyond it: nothing is read, and it ends.": (
        "tests/kafka/test_subscription.py::test_a_bounded_read_that_begins_at_its_stop_is_caught_up_at_once",
        "tests/kafka/test_subscription.py::test_a_position_beyond_the_stop_is_caught_up_if_the_partition_has_it",
    ),
    "A stop lies beyond the end: it is waited for, unless it can never come.": (
        "tests/kafka/test_source_stops.py::test_a_read_waits_for_a_stop_that_does_not_exist_yet",
        "tests/kafka/test_data_loss.py::test_a_bounded_read_goes_to_its_stop_where_that_can_never_be_reached",
    ),
    "What is available now grows while it is read: it ends where it ended.": (
        "tests/kafka/test_source_stops.py::test_what_is_available_now_is_read_and_no_more",
        "tests/kafka/test_source_stops.py::test_partitions_that_are_added_are_not_part_of_a_bounded_read",
        "tests/kafka/test_connection.py::test_a_bounded_read_lists_its_partitions_once",
        "tests/spark/test_kafka.py::test_what_is_available_now_reaches_the_handler_with_all_its_columns",
    ),
    "An offset is asked for that the partition does not have: that is a loss.": (
        "tests/kafka/test_source_starts.py::test_an_offset_beyond_the_end_is_lost_records",
        "tests/kafka/test_data_loss.py::test_an_offset_that_is_refused_although_the_partition_has_it_is_asked_for_again",
    ),
    "Another client looks at the group: it sees what was acknowledged, and no more.": (
        "tests/kafka/test_source_commits.py::test_another_client_sees_what_was_acknowledged",
        "tests/kafka/test_source_commits.py::test_nothing_is_committed_before_it_is_acknowledged",
        "tests/kafka/test_source_commits.py::test_a_transaction_leaves_no_lag_behind",
        "tests/spark/test_kafka.py::test_a_group_sees_as_left_what_no_handler_has_returned_for",
    ),
    "A commit fails, hangs or is refused, or its coordinator has moved: the stream goes on.": (
        "tests/kafka/test_commits.py::test_a_request_that_fails_is_made_again_with_what_is_newest_then",
        "tests/kafka/test_commits.py::test_a_partition_that_is_refused_does_not_keep_the_others_from_being_committed",
        "tests/kafka/test_commits.py::test_closing_gives_up_after_a_few_seconds_and_says_so",
        "tests/kafka/test_client_moves.py::test_a_coordinator_that_is_remembered_and_has_moved_is_looked_up_once_more",
    ),
    "The group's commits differ from the stored positions: they are never read.": (
        "tests/kafka/test_source_commits.py::test_commits_are_never_read_where_positions_are_stored",
    ),
}

TRANSACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "The writer of a transaction is gone before its commit: any process finishes it, once.": (
        "tests/kafka/transactions/test_transactions.py::test_another_process_commits_by_the_stored_token_alone",
        "tests/kafka/transactions/test_transactions.py::test_to_commit_twice_is_to_commit_once",
        "tests/kafka/transactions/test_transactions.py::test_two_who_commit_at_the_same_time_both_hear_that_it_is_done",
    ),
    "A dead run has left a transaction open: readers get on when the next one begins.": (
        "tests/kafka/transactions/test_transactions.py::test_to_begin_lets_readers_get_on",
        "tests/kafka/transactions/test_transactions.py::test_whoever_begins_anew_fences_the_transaction_before",
    ),
    "A commit comes late, after a newer run: it changes nothing, and its error says so.": (
        "tests/kafka/transactions/test_transactions.py::test_a_late_commit_after_a_newer_run_changes_nothing_and_tells_the_truth",
        "tests/kafka/transactions/test_transaction_calls.py::test_the_marker_that_a_newer_run_hides_is_looked_up",
    ),
    "A transaction takes longer than its timeout: the error names it, and nothing of it is seen.": (
        "tests/kafka/transactions/test_transactions.py::test_an_expired_transaction_is_told_as_such_and_its_batch_can_run_again",
        "tests/kafka/transactions/test_transaction_calls.py::test_a_transaction_that_the_broker_is_just_aborting_is_waited_for",
    ),
    "A zombie writes with the same epoch after the end: what it opens is never committed.": (
        "tests/kafka/transactions/test_transactions.py::test_a_zombie_that_opens_a_transaction_after_the_end_is_not_committed",
        "tests/kafka/transactions/test_transactions.py::test_a_zombie_that_opens_a_transaction_after_an_abort_is_not_committed",
        "tests/kafka/transactions/test_transaction_calls.py::test_what_a_lost_answer_may_have_committed_is_looked_at_before_it_is_committed_again",
        "tests/kafka/transactions/test_transaction_calls.py::test_a_zombie_of_the_same_epoch_is_not_taken_for_a_newer_run",
    ),
    "A commit is still reaching the partitions when its marker is looked for: it is waited for.": (
        "tests/kafka/transactions/test_transactions.py::test_a_marker_that_is_on_its_way_is_never_absent",
    ),
    "A broker is killed or hangs between the marker and the commit, or in the middle of it.": (
        "tests/kafka/transactions/test_transactions_failures.py::test_a_transaction_outlives_a_broker_that_is_killed_before_the_commit",
        "tests/kafka/transactions/test_transactions_failures.py::test_a_commit_that_a_killed_broker_never_answered_has_a_known_outcome",
        "tests/kafka/transactions/test_transactions_failures.py::test_a_commit_survives_a_broker_that_hangs",
        "tests/kafka/transactions/test_transactions_failures.py::test_a_commit_that_gets_no_answer_says_so_and_can_be_made_again",
    ),
    "A coordinator is being elected, or has just started: it is asked again.": (
        "tests/kafka/transactions/test_transactions_failures.py::test_the_first_transaction_waits_for_a_broker_that_has_just_started",
        "tests/kafka/transactions/test_transaction_calls.py::test_a_coordinator_that_is_busy_or_moves_is_asked_again",
        "tests/kafka/transactions/test_transaction_calls.py::test_a_marker_group_that_is_busy_or_moves_is_asked_again",
    ),
    "Writing in a transaction is not permitted: the error names what to grant.": (
        "tests/kafka/transactions/test_transactions_failures.py::test_what_is_not_permitted_is_named",
    ),
    "A topic that was written to is deleted before or after the commit.": (
        "tests/kafka/transactions/test_transactions.py::test_a_transaction_in_several_topics_is_marked_in_each",
        "tests/kafka/transactions/test_transactions.py::test_the_outcome_is_known_although_the_only_marked_topic_was_deleted",
        "tests/kafka/transactions/test_transactions.py::test_a_transaction_whose_marker_went_with_its_topic_is_not_committed",
        "tests/kafka/transactions/test_transactions.py::test_a_topic_that_does_not_exist_cannot_be_marked",
    ),
    "The brokers are too old to describe transactions, or to show an open marker.": (
        "tests/kafka/transactions/test_transaction_calls.py::test_a_broker_that_cannot_describe_transactions_is_enough",
        "tests/kafka/transactions/test_transaction_calls.py::test_a_broker_that_cannot_tell_an_open_marker_is_refused",
    ),
    "A dead job cannot be started for now: a person sees what it left open, and finishes it.": (
        "tests/spark/sinks/kafka/test_finish_transactions.py::test_a_killed_driver",
        "tests/cli/test_transactions.py::test_what_brokers_have_forgotten_is_decided_by_who_has_looked",
        "tests/cli/test_transactions.py::test_nothing_is_changed_while_the_job_runs",
        "tests/cli/test_transactions.py::test_a_batch_that_is_committed_while_it_is_being_aborted_stays_so",
    ),
    "A caller is cancelled: the call leaves nothing, and can be made again.": (
        "tests/kafka/transactions/test_transactions_failures.py::test_cancelling_a_call_leaves_nothing_behind_and_it_can_be_made_again",
    ),
}

WRITING: Final[Mapping[str, tuple[str, ...]]] = {
    "A writer is killed in a transaction: nothing of it is seen, and the next one ends it.": (
        "tests/kafka/writer/test_failures.py::test_nothing_is_seen_of_a_writer_that_is_killed_in_a_transaction",
    ),
    "An older writer goes on after a newer one: every call of it is an error.": (
        "tests/kafka/writer/test_failures.py::test_an_older_writer_is_fenced_wherever_it_is",
    ),
    "A broker is killed while records are written, and comes back: each is there once, in order.": (
        "tests/kafka/writer/test_failures.py::test_a_broker_that_is_killed_and_comes_back_has_each_record_once_in_order",
        "tests/kafka/writer/test_failures.py::test_a_job_goes_on_through_the_restart_of_its_broker",
    ),
    "A broker does not know a topic yet, or knows more partitions: no key of a writer moves.": (
        "tests/kafka/writer/test_partition_counts.py::test_a_broker_that_does_not_know_the_topic_yet_moves_no_key",
        "tests/kafka/writer/test_partition_counts.py::test_partitions_that_are_added_move_no_key_of_a_writer_that_is_open",
    ),
    "A partition has no leader while others are written: memory stays bounded.": (
        "tests/kafka/writing/test_writer_memory.py::test_what_waits_keeps_no_memory_of_what_was_confirmed",
    ),
    "A topic that earlier batches of a sink named is deleted: other batches are written.": (
        "tests/spark/sinks/kafka/test_connection.py::test_a_topic_of_an_earlier_batch_that_was_deleted_fails_no_batch_that_does_not_name_it",
    ),
    "A job that reads, processes and writes is killed at any moment: each record counts once.": (
        "tests/kafka/writer/test_failures.py::test_a_job_that_is_killed_counts_each_record_once",
        "tests/kafka/writer/test_failures.py::test_a_job_that_is_killed_many_times_counts_each_record_once",
    ),
    "A task is cancelled while it writes or commits: each record counts once, or none of them.": (
        "tests/kafka/writer/test_failures.py::test_a_job_that_is_cancelled_at_any_await_counts_each_record_once",
        "tests/kafka/writer/test_failures.py::test_what_is_written_after_a_commit_that_was_cancelled_is_committed_by_the_next",
        "tests/kafka/writer/test_failures.py::test_a_cancelled_write_is_not_committed_in_part",
    ),
    "A transaction is open for too long: the broker ends it, and its writer says so.": (
        "tests/kafka/writer/test_failures.py::test_a_transaction_that_takes_too_long_is_an_error_and_the_next_writer_goes_on",
    ),
    "A permission is missing: the error names it.": (
        "tests/kafka/writer/test_failures.py::test_what_is_not_permitted_is_named",
    ),
}

# Each request that the library sends, and the answers to it that are valid and rare.
ANSWERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Every request: an error code that Kafka calls retriable, known to aiokafka or not.": (
        "tests/kafka/test_answers.py::test_an_error_that_passes_by_itself_ends_neither_reading_nor_writing",
        "tests/kafka/test_answers.py::test_an_error_that_aiokafka_does_not_know_has_its_name",
        "tests/kafka/test_policy.py::test_each_error_of_kafka_means_what_was_decided",
    ),
    "Every request: a throttle, after which the broker reads no request of the connection.": (
        "tests/kafka/test_throttling.py::test_a_request_waits_until_the_broker_reads_it",
        "tests/kafka/test_throttling.py::test_a_writer_that_is_throttled_writes_each_record_once",
    ),
    "Fetch: no topics (throttled), no records, no lists of transactions, no last stable offset.": (
        "tests/kafka/test_throttling.py::test_an_answer_without_topics_is_throttled",
        "tests/kafka/test_answers.py::test_a_partition_without_records_and_aborted_transactions_is_empty",
        "tests/kafka/test_answers.py::test_a_broker_that_reports_no_last_stable_offset_has_no_open_transaction",
    ),
    "Fetch: a nearer replica, an error of one partition, or of the whole answer.": (
        "tests/kafka/test_answers.py::test_a_replica_that_a_leader_names_is_read_next",
        "tests/kafka/test_answers.py::test_a_refusal_of_a_fetch_that_passes_is_told_of_its_partition",
        "tests/kafka/test_answers.py::test_an_answer_that_is_refused_as_a_whole_passes",
        "tests/kafka/test_fetcher.py::test_a_partition_without_an_answer_is_an_error",
    ),
    "ListOffsets: no offset for a time, a leader that does not know yet, a missing partition.": (
        "tests/kafka/test_answers.py::test_an_offset_of_a_time_that_no_record_has_is_none",
        "tests/kafka/test_answers.py::test_a_leader_that_cannot_tell_offsets_yet_is_asked_again_when_a_stream_opens",
        "tests/kafka/test_answers.py::test_a_look_up_that_leaves_a_partition_out_is_an_error_that_passes",
    ),
    "Metadata: no brokers, no name of the cluster, partitions without a leader, unknown topics.": (
        "tests/kafka/test_answers.py::test_a_broker_that_just_starts_lists_no_brokers_and_loses_none_of_ours",
        "tests/kafka/test_answers.py::test_a_broker_that_does_not_name_its_cluster_is_not_another_cluster",
        "tests/kafka/test_answers.py::test_a_writer_knows_its_cluster_though_a_broker_does_not_name_it",
        "tests/kafka/test_answers.py::test_a_partition_without_a_leader_is_listed_and_led_by_nobody",
        "tests/kafka/test_client.py::test_a_topic_that_does_not_exist_has_its_own_error_and_is_not_created",
    ),
    "FindCoordinator: none yet, or another one than before.": (
        "tests/kafka/test_answers.py::test_a_coordinator_that_is_being_elected_is_looked_for_again",
        "tests/kafka/transactions/test_transaction_calls.py::test_a_coordinator_that_has_moved_is_looked_up_again",
    ),
    "OffsetFetch: no offset, a group that loads, a missing partition, an open transaction.": (
        "tests/kafka/test_answers.py::test_no_committed_offset_is_none",
        "tests/kafka/test_answers.py::test_a_group_that_is_loading_or_moves_is_asked_again",
        "tests/kafka/test_answers.py::test_committed_offsets_that_are_left_out_are_not_taken_for_none",
        "tests/kafka/transactions/test_transactions.py::test_a_marker_that_is_on_its_way_is_never_absent",
    ),
    "OffsetCommit: an error of some partitions, a group with members, a missing partition.": (
        "tests/kafka/test_answers.py::test_a_commit_that_a_group_refuses_is_told_of_its_partition_alone",
        "tests/kafka/test_answers.py::test_a_commit_that_leaves_a_partition_out_is_not_taken_for_done",
        "tests/kafka/test_client.py::test_what_a_group_commits_is_seen_by_other_clients",
    ),
    "InitProducerId: a transaction that is still being ended, no block of ids yet.": (
        "tests/kafka/test_answers.py::test_a_producer_id_that_is_not_assigned_yet_is_asked_for_again",
        "tests/kafka/transactions/test_transaction_calls.py::test_a_coordinator_that_is_busy_or_moves_is_asked_again",
    ),
    "AddPartitionsToTxn, TxnOffsetCommit: a partition that is left out is not part of it.": (
        "tests/kafka/test_answers.py::test_partitions_that_are_left_out_are_not_part_of_a_transaction",
        "tests/kafka/test_answers.py::test_offsets_that_are_left_out_are_set_again",
        "tests/kafka/transactions/test_transaction_calls.py::test_a_marker_group_that_is_busy_or_moves_is_asked_again",
    ),
    "EndTxn: the same end again, another end, an older producer, a lost answer.": (
        "tests/kafka/transactions/test_transactions.py::test_a_late_commit_after_a_newer_run_changes_nothing_and_tells_the_truth",
        "tests/kafka/transactions/test_transaction_calls.py::test_what_a_lost_answer_may_have_committed_is_looked_at_before_it_is_committed_again",
    ),
    "Produce: a repeated batch, an unusual record, no row for a partition, replicas that lag.": (
        "tests/kafka/test_answers.py::test_a_batch_that_has_arrived_before_counts_as_written",
        "tests/kafka/test_answers.py::test_a_record_that_a_topic_does_not_take_is_named_as_such",
        "tests/kafka/writer/test_failures.py::test_a_compacted_topic_takes_no_record_without_a_key",
        "tests/kafka/test_answers.py::test_an_answer_about_no_partition_or_another_one_confirms_nothing",
        "tests/kafka/test_answers.py::test_a_batch_that_cannot_be_written_for_now_is_sent_again",
    ),
    "DescribeConfigs: a setting that is not reported, or has no value.": (
        "tests/kafka/test_answers.py::test_a_setting_that_a_broker_does_not_report_has_its_default",
        "tests/kafka/test_answers.py::test_a_topic_whose_retention_is_not_reported_can_be_shuffled_in",
        "tests/kafka/doctor/test_unusual_answers.py::test_a_setting_that_is_not_reported_is_unknown",
    ),
    "DescribeTransactions: an unknown id, a broker that has no such request.": (
        "tests/kafka/transactions/test_transaction_calls.py::test_a_broker_that_cannot_describe_transactions_is_enough",
        "tests/cli/test_transactions.py::test_what_brokers_have_forgotten_is_decided_by_who_has_looked",
    ),
    "ApiVersions and SASL: another service, another mechanism, a refused token or password.": (
        "tests/kafka/protocol/test_first_contact.py::test_a_wrong_protocol_is_named_at_once",
        "tests/kafka/protocol/test_first_contact.py::test_a_broker_that_names_no_mechanism_may_answer_later",
        "tests/kafka/test_client_security.py::test_a_wrong_password_is_an_error_that_is_final",
    ),
    "ShareAcknowledge: no answer; the records that came meanwhile do not wait for it.": (
        "tests/kafka/share/test_member.py::test_records_do_not_wait_for_the_word_about_others",
        "tests/kafka/share/test_last_delivery.py::test_nothing_is_locked_for_a_consumer_that_waits_for_an_answer",
    ),
    "ShareFetch and ShareAcknowledge: errors that the client reports, also those that pass.": (
        "tests/kafka/share/test_policy.py::test_the_table_says_what_an_error_means",
        "tests/kafka/share/test_policy.py::test_what_nobody_knows_is_tried_for_a_while_and_then_reported",
    ),
}
