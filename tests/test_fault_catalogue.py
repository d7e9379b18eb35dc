"""Faults of a service, and the tests that show that the library survives each.

Each line is a failure, or a moment in which other connectors have failed, and what the library
makes of it, in the words of an operator. The names after it are the tests. Where a failure
belongs to the way in which another connector is built, the line states the danger here. The
lines about Kafka are in tests/kafka/faults.py.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from tests.kafka import faults as kafka

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]

Lines: TypeAlias = "Mapping[str, tuple[str, ...]]"

SUBSCRIBING: Final[Lines] = {
    "A subscribe call is never answered: it is given up after its time, and made again.": (
        "tests/core/test_subscriber.py::test_a_subscribe_call_without_an_answer_is_given_up_after_its_timeout",
        "tests/kinesis/test_faults.py::test_after_calls_without_an_answer_every_record_arrives_once_and_in_order",
    ),
    "An answer comes after its call was given up: it delivers nothing, and its socket is closed.": (
        "tests/core/test_subscriber.py::test_an_answer_that_comes_when_its_time_is_up_opens_one_subscription_at_most",
        "tests/kinesis/test_network.py::test_an_answer_that_comes_after_its_time_delivers_nothing",
        "tests/kinesis/test_client.py::test_cancellation_while_subscribing_hangs_up",
    ),
    "The service does not find what is subscribed to, and it is found out what has gone.": (
        "tests/kinesis/test_recovery.py::test_a_shard_that_expired_before_it_was_read_ends_the_stream_with_its_name",
        "tests/kinesis/test_recovery.py::test_a_not_found_while_all_is_there_passes",
        "tests/kinesis/test_recovery.py::test_a_not_found_that_stays_while_all_is_there_ends_the_stream",
    ),
    "The service throttles, or fails with a 5xx, of which the body may be an HTML page.": (
        "tests/kinesis/test_faults.py::test_a_call_that_fails_for_now_is_made_again",
        "tests/core/test_subscriber.py::test_a_throttled_split_waits_for_the_floor_alone",
        "tests/kinesis/test_client.py::test_a_refused_subscription_is_asked_for_once",
    ),
    "Another client holds a shard when the stream opens: opening does not wait for that shard.": (
        "tests/kinesis/test_takeover.py::test_a_shard_that_somebody_else_holds_from_the_beginning_holds_nobody_up",
    ),
    "The service throttles, fails or lets a page token expire while a stream is opened.": (
        "tests/kinesis/test_rare_answers.py::test_a_call_that_is_refused_for_now_ends_nothing",
        "tests/kinesis/test_client.py::test_a_listing_whose_page_token_expires_begins_anew",
        "tests/core/test_fan_out.py::test_a_listing_that_fails_for_a_minute_while_opening_is_the_failure",
    ),
    "The environment asks for retries that slow a whole client: they do not reach it.": (
        "tests/kinesis/test_environment.py::test_a_variable_or_a_profile_changes_nothing_or_is_told",
    ),
    "The very first call is denied: one call, and an error that names the missing action.": (
        "tests/kinesis/test_faults.py::test_a_denied_first_call_is_fatal_and_the_only_one",
        "tests/kinesis/test_polling.py::test_a_denied_first_call_is_fatal_and_the_only_one",
    ),
    "A stored position has expired: an error, or a counted gap behind which nothing comes twice.": (
        "tests/kinesis/test_recovery.py::test_records_that_expired_before_they_were_read_end_the_stream_with_the_number",
        "tests/kinesis/test_recovery.py::test_records_that_expired_are_a_measured_gap_where_that_is_allowed",
        "tests/kinesis/test_recovery.py::test_a_position_that_is_refused_without_having_expired_repeats_nothing",
    ),
    "A position expires later, while its reader is slow.": (
        "tests/kinesis/test_recovery.py::test_records_that_expire_while_their_reader_is_slow_are_never_skipped_in_silence",
    ),
    "Another error comes at a stored position: nothing is skipped.": (
        "tests/kinesis/test_recovery.py::test_another_error_at_a_stored_position_skips_nothing",
    ),
    "A split is listed again while it is read, or read by two tasks: it has one subscription.": (
        "tests/core/test_supervisor.py::test_a_split_that_has_ended_is_not_subscribed_again_after_a_listing",
        "tests/core/test_many_splits.py::test_a_single_renewal_waits_for_nothing",
        "tests/core/test_fan_out.py::test_a_second_reader_is_refused_and_the_first_goes_on",
    ),
    "A stream is used after it was closed, or closed twice.": (
        "tests/core/test_fan_out.py::test_a_closed_stream_cannot_be_read",
        "tests/core/test_supervisor.py::test_an_end_that_is_taken_while_closing_starts_nothing",
        "tests/spark/test_query.py::test_stop_can_be_called_again",
    ),
    "The pool of connections is smaller than the number of shards: no shard waits for another.": (
        "tests/kinesis/test_client.py::test_a_pool_limit_lower_than_the_shard_count_holds_no_shard_up",
        "tests/kinesis/test_open_files.py::test_a_stream_with_more_shards_than_files_may_be_open_says_so_when_it_opens",
    ),
    "The first frame of an answer is an exception, and no initial-response: it has its own name.": (
        "tests/kinesis/test_subscription.py::test_an_exception_that_comes_first_is_raised_as_itself",
        "tests/kinesis/test_faults.py::test_an_answer_whose_very_first_frame_is_an_exception_is_asked_for_again",
    ),
    "No initial-response comes at all.": (
        "tests/kinesis/test_subscription.py::test_the_initial_response_may_be_missing",
    ),
    "A thousand subscriptions expire in the same second: they are renewed in turn.": (
        "tests/core/test_many_splits.py::test_1000_subscriptions_that_end_in_one_second_are_renewed_in_turn_and_without_delay",
        "tests/core/test_many_splits.py::test_calls_that_hang_hold_the_other_splits_up_for_seconds_only",
    ),
}

STREAMING: Final[Lines] = {
    "A producer gave no partition key: it is null, and the record is delivered.": (
        "tests/kinesis/test_records_without_key.py::test_a_key_that_was_not_given_is_null",
    ),
    "Records come event by event, in one subscription or in many.": (
        "tests/kinesis/test_source.py::test_trim_horizon_reads_everything",
        "tests/kinesis/test_subscription.py::test_the_ranges_of_batches_form_a_chain",
    ),
    "Records are aggregated by the Kinesis Producer Library: their sub-records come.": (
        "tests/kinesis/test_subscription.py::test_aggregated_records_come_as_their_sub_records",
        "tests/kinesis/test_subscription.py::test_a_malformed_aggregate_delivers_nothing_of_its_event",
    ),
    "A shard has no records, now or ever: heartbeats keep it alive, and its position moves.": (
        "tests/core/test_subscriber.py::test_heartbeats_keep_an_idle_subscription_alive",
        "tests/kinesis/test_resharding.py::test_a_shard_without_records_moves_in_the_positions_all_the_same",
    ),
    "An event without records comes before a single record.": (
        "tests/kinesis/test_subscription.py::test_an_event_without_records_is_progress",
        "tests/core/test_fan_out.py::test_drain_wakes_at_the_first_record_and_fills_until_the_wait_ends",
    ),
    "A subscription ends after its five minutes: the next one goes on after its continuation.": (
        "tests/core/test_subscriber.py::test_resume_is_after_the_last_hand_off",
        "tests/kinesis/test_faults.py::test_after_a_fault_in_a_subscription_every_record_arrives_once_and_in_order",
    ),
    "A subscription fails after some events, several times in a row.": (
        "tests/core/test_subscriber.py::test_no_end_of_a_subscription_loses_or_repeats_a_record",
        "tests/kinesis/test_faults.py::test_a_fault_in_the_middle_of_a_backlog_neither_skips_nor_repeats",
        "tests/kinesis/test_faults.py::test_every_fault_at_once_loses_and_repeats_nothing",
    ),
    "Ends that are part of life are never counted as failures, however often they come.": (
        "tests/core/test_subscriber.py::test_the_ordinary_end_of_an_idle_subscription_is_never_counted",
        "tests/core/test_subscriber.py::test_an_end_after_progress_is_no_retry",
        "tests/kinesis/test_faults.py::test_an_end_after_an_event_is_never_counted_as_a_failure",
    ),
    "Success and failure alternate: each success forgets the failures before it.": (
        "tests/core/test_subscriber.py::test_max_retries_failures_in_a_row_are_allowed",
        "tests/core/test_subscriber.py::test_backoff_resets_on_progress",
        "tests/kinesis/test_faults.py::test_permissions_that_are_lost_shortly_now_and_then_never_slow_the_stream_down",
    ),
    "More failures in a row than are allowed end the stream, with the last one as the cause.": (
        "tests/core/test_subscriber.py::test_one_failure_more_than_max_retries_is_fatal",
        "tests/kinesis/test_faults.py::test_max_retries_failures_in_a_row_are_fatal",
    ),
    "Each kind of error has a budget of its own.": (
        "tests/core/test_subscriber.py::test_errors_with_different_verdicts_are_counted_apart",
        "tests/kinesis/test_policy.py::test_what_has_worked_is_asked_for_as_often_as_it_takes",
        "tests/kinesis/test_faults.py::test_a_code_that_nobody_knows_is_fatal_after_forty_tries",
    ),
    "Several errors come at once: the first one wins, and the others are logged.": (
        "tests/core/test_slot.py::test_the_first_pill_wins",
        "tests/core/test_supervisor.py::test_the_first_failure_wins_and_later_ones_are_logged",
    ),
    "An error comes while an event is still waiting: the event is read first.": (
        "tests/core/test_subscriber.py::test_the_pill_arrives_while_the_slot_is_full_and_is_seen_after_the_event",
        "tests/kinesis/test_subscription.py::test_an_exception_comes_after_the_events_before_it",
    ),
    "The reader is cancelled: it ends as cancelled, and not as failed.": (
        "tests/core/test_fan_out.py::test_a_cancellation_of_the_body_comes_out_as_itself",
        "tests/core/test_subscriber.py::test_a_close_that_fails_does_not_swallow_the_cancellation",
        "tests/core/test_subscriber.py::test_a_cancellation_that_nobody_asked_for_is_a_failure",
    ),
    "Code of the user raises: the hook for a new subscription, or Spark's handler.": (
        "tests/core/test_fan_out.py::test_on_resubscribe_is_called_and_what_it_raises_is_fatal",
        "tests/core/test_fan_out.py::test_an_error_in_the_body_comes_out_as_itself",
        "tests/spark/test_query.py::test_a_handler_that_raises_ends_the_query_with_its_cause",
        "tests/spark/test_query.py::test_a_batch_whose_handler_failed_comes_again_under_its_id",
    ),
    "The service sends five events where two were asked for: the others wait, in order.": (
        "tests/kinesis/test_extremes.py::test_five_events_for_two_that_were_asked_for_wait_and_come_in_order",
    ),
    "The service sends far more than was asked for: it waits in the socket.": (
        "tests/kinesis/test_extremes.py::test_a_burst_that_nobody_asked_for_waits_in_its_socket",
        "tests/core/test_slot.py::test_a_full_slot_makes_its_subscriber_wait",
    ),
    "The consumer takes hours for an event: nothing is dropped, and nothing times out.": (
        "tests/core/test_subscriber.py::test_a_slow_consumer_loses_nothing_and_trips_no_watchdog",
        "tests/core/test_subscriber.py::test_the_watchdog_stands_still_while_an_event_waits_for_memory",
    ),
    "An old subscription still has events when its successor runs: they are dropped.": (
        "tests/core/test_subscriber.py::test_a_cancelled_subscriber_is_continued_by_a_new_one_from_its_position",
        "tests/kinesis/test_faults.py::test_two_streams_of_one_consumer_alternate_and_lose_nothing",
    ),
    "An older batch is acknowledged after a newer one: the position does not move back.": (
        "tests/core/test_progress.py::test_acknowledging_never_moves_back",
        "tests/core/test_fan_out.py::test_acknowledging_is_cumulative_per_split",
    ),
    "A batch is acknowledged that was never delivered, such as one of another stream: an error.": (
        "tests/core/test_fan_out.py::test_what_was_not_delivered_cannot_be_acknowledged",
        "tests/core/test_fan_out.py::test_a_snapshot_or_a_drain_of_another_source_cannot_be_acknowledged",
    ),
    "The caller of a read is gone when its batch is ready: the next read returns it.": (
        "tests/core/test_fan_out.py::test_what_a_cancelled_drain_has_collected_is_returned_in_order",
        "tests/landing/segments/test_segment_filler.py::test_a_cancelled_call_takes_nothing",
    ),
    "Subscriptions succeed and end without an event: the waits between them grow.": (
        "tests/core/test_subscriber.py::test_backoff_does_not_reset_on_a_successful_subscribe",
    ),
    "Two readers take a shard over from each other: no error in the log, and nothing is lost.": (
        "tests/kinesis/test_takeover.py::test_a_second_reader_takes_over_when_the_subscription_is_old_enough",
        "tests/kinesis/test_faults.py::test_two_streams_of_one_consumer_alternate_and_lose_nothing",
    ),
    "What only a person can mend is an error in the log, each time, with what to do.": (
        "tests/core/test_subscriber.py::test_what_only_a_person_can_end_is_retried_slowly_and_told_each_time",
        "tests/kinesis/test_faults.py::test_a_permission_that_is_lost_for_long_comes_back_by_itself",
    ),
    "One shard fails: the others go on.": (
        "tests/core/test_supervisor.py::test_a_retrying_split_never_stops_the_others",
        "tests/kinesis/test_faults.py::test_a_fault_of_one_shard_leaves_the_others_alone",
    ),
    "The KMS key is throttled, disabled, gone, forbidden or in a wrong state, and mended later.": (
        "tests/kinesis/test_faults.py::test_a_key_that_is_fixed_later_is_waited_for_loudly_and_nothing_is_lost",
        "tests/kinesis/test_faults.py::test_a_key_that_cannot_be_used_at_first_is_fatal",
        "tests/kinesis/test_faults.py::test_after_a_fault_in_a_subscription_every_record_arrives_once_and_in_order",
    ),
    "Credentials expire during a subscription: it goes on, and the next call gets new ones.": (
        "tests/kinesis/test_faults.py::test_keys_that_expire_in_a_subscription_do_not_end_it",
        "tests/kinesis/test_credentials.py::test_a_key_that_is_rotated_in_its_file_is_taken_up_and_nothing_is_lost",
        "tests/kinesis/test_client.py::test_a_role_is_assumed_again_when_its_credentials_expire",
    ),
    "User code blocks the event loop for a minute: the service is not taken for silent.": (
        "tests/core/test_subscriber.py::test_an_event_loop_that_user_code_blocks_for_60_s_is_not_taken_for_a_silent_service",
        "tests/kinesis/test_faults.py::test_an_event_loop_blocked_by_user_code_is_not_taken_for_a_silent_service",
    ),
    "A task is cancelled at any of its steps: nothing is lost, repeated or left open.": (
        "tests/core/test_cancellation.py::test_a_stream_cancelled_at_any_step_is_continued_exactly",
        "tests/core/test_cancellation.py::test_a_drain_cancelled_at_any_step_loses_and_repeats_nothing",
        "tests/core/test_cancellation.py::test_iteration_cancelled_at_any_step_loses_and_repeats_nothing",
        "tests/core/test_cancellation.py::test_a_stream_that_is_cancelled_while_it_opens_and_closes_leaves_nothing",
        "tests/kinesis/test_source.py::test_cancelling_leaves_no_task_no_socket_and_no_thread",
    ),
}

BYTES: Final[Lines] = {
    "The network cuts frames at any byte.": (
        "tests/kinesis/test_event_stream.py::test_frames_may_be_cut_at_any_byte",
        "tests/kinesis/test_event_stream.py::test_frames_may_come_byte_by_byte",
        "tests/kinesis/test_subscription.py::test_the_cut_of_the_body_into_chunks_changes_nothing",
    ),
    "A body ends inside a frame, although its transfer was whole.": (
        "tests/kinesis/test_subscription.py::test_a_body_that_ends_inside_a_frame_is_malformed",
        "tests/kinesis/test_event_stream.py::test_a_stream_that_ends_inside_a_frame_is_malformed",
        "tests/kinesis/test_faults.py::test_after_a_fault_in_a_subscription_every_record_arrives_once_and_in_order",
    ),
    "A connection is closed or reset anywhere: in the head, a chunk, its size, or a frame.": (
        "tests/kinesis/test_network.py::test_an_answer_that_is_cut_anywhere_loses_and_repeats_nothing",
        "tests/kinesis/test_client.py::test_a_body_cut_off_by_the_network_raises_the_network_error",
    ),
    "A checksum is wrong: the frame is asked for again, and dropped only if that was chosen.": (
        "tests/kinesis/test_event_stream.py::test_a_flipped_bit_in_the_prelude_is_found",
        "tests/kinesis/test_event_stream.py::test_a_flipped_bit_after_the_prelude_is_found",
        "tests/kinesis/test_faults.py::test_damage_at_one_place_three_times_is_fatal",
        "tests/kinesis/test_bad_frames.py::test_exactly_the_records_of_the_damaged_frame_are_missing",
    ),
    "A connection is open at one end alone: the silence ends it, heartbeats missing too.": (
        "tests/kinesis/test_network.py::test_a_connection_that_is_open_at_one_end_alone_is_a_silence",
        "tests/core/test_subscriber.py::test_a_silent_server_is_given_up_after_exactly_the_silence_timeout",
        "tests/kinesis/test_faults.py::test_after_a_silence_every_record_arrives_once_and_in_order",
    ),
    "Bytes trickle so slowly that no event is ever whole: that is a silence as well.": (
        "tests/kinesis/test_network.py::test_an_answer_whose_bytes_trickle_is_a_silence",
        "tests/kinesis/test_network.py::test_a_head_whose_bytes_trickle_is_no_answer",
        "tests/kinesis/test_subscription.py::test_frames_that_say_nothing_are_no_sign_of_life",
    ),
    "What comes is no frame or no event at all: an error that quotes nothing of it.": (
        "tests/kinesis/test_event_stream.py::test_any_bytes_are_frames_or_malformed",
        "tests/test_damaged_json.py::test_a_reader_raises_its_own_error_alone_and_takes_little_memory",
        "tests/kinesis/test_decode.py::test_a_wrong_value_is_malformed_named_and_not_quoted",
    ),
    "A record has 10 MiB, more than 13 MB in base64.": (
        "tests/kinesis/test_extremes.py::test_a_record_of_10_mib_comes_whole_in_an_event_of_14_mb",
    ),
    "An event has 10,000 records.": (
        "tests/kinesis/test_extremes.py::test_10_000_records_come_in_one_event",
    ),
    "An event announces more bytes than are allowed: it is refused before memory is taken.": (
        "tests/kinesis/test_subscription.py::test_an_event_that_announces_too_much_is_refused_without_a_reservation",
        "tests/kinesis/test_source.py::test_an_event_that_is_too_large_is_named_in_the_end",
    ),
    "256 shards have large events waiting at once: memory keeps its bound.": (
        "tests/kinesis/test_many_shards.py::test_resident_memory_grows_by_3_events_of_each_shard_at_most",
        "tests/kinesis/test_many_shards.py::test_resident_memory_grows_by_the_bytes_in_flight_where_events_are_large",
    ),
}

POSITIONS: Final[Lines] = {
    "LATEST stays the moment of its first use, through failures, empty events and restarts.": (
        "tests/kinesis/test_source.py::test_latest_skips_nothing_although_the_first_calls_fail",
        "tests/kinesis/test_source.py::test_latest_stays_the_moment_of_its_origin",
        "tests/kinesis/test_polling.py::test_a_time_without_records_stays_the_position",
    ),
    "Records at a time come to nothing, such as dropped aggregates: the position still holds.": (
        "tests/kinesis/test_subscription.py::test_an_event_of_bad_aggregates_alone_is_progress_with_gaps",
        "tests/kinesis/test_deaggregation.py::test_a_position_moves_past_an_aggregate_of_which_nothing_is_left",
    ),
    "A restart in the middle of an aggregated record neither repeats nor skips a sub-record.": (
        "tests/kinesis/test_deaggregation.py::test_a_resume_at_any_cut_repeats_and_skips_no_sub_record",
        "tests/kinesis/test_deaggregation.py::test_a_restart_anywhere_after_a_reshard_repeats_and_skips_nothing",
        "tests/kinesis/test_polling.py::test_a_stream_changes_its_mode_in_the_middle_of_an_aggregated_record",
    ),
    "A start lies in the future: waited for where a clock explains it, else an error.": (
        "tests/kinesis/test_recovery.py::test_a_start_just_ahead_of_the_clock_is_waited_for",
        "tests/kinesis/test_recovery.py::test_a_start_far_ahead_of_the_clock_ends_the_stream",
    ),
    "Positions move without records, and are stored.": (
        "tests/core/test_fan_out.py::test_idle_progress_moves_the_positions_when_nothing_is_outstanding",
        "tests/spark/test_query.py::test_idle_progress_is_stored_and_used_after_a_restart",
    ),
    "It is known how far a shard is behind, and unknown while it is not read.": (
        "tests/kinesis/test_subscription.py::test_records_come_with_the_range_that_they_cover_and_the_lag",
        "tests/core/test_fan_out.py::test_the_lag_is_unknown_while_a_split_is_not_live",
    ),
    "The clock of the host is five minutes off, either way.": (
        "tests/kinesis/test_clock.py::test_latest_neither_skips_nor_repeats_although_our_clock_is_5_minutes_off",
        "tests/kinesis/test_clock.py::test_a_time_of_the_service_is_exact_although_our_clock_is_5_minutes_off",
        "tests/kinesis/test_doctor.py::test_a_refused_signature_tells_the_clock_as_well",
    ),
    "Clocks are put back or forward for daylight saving, or a leap second is inserted.": (
        "tests/core/test_positions.py::test_an_aware_datetime_becomes_the_milliseconds_of_its_moment",
        "tests/core/test_positions.py::test_a_naive_datetime_is_refused",
    ),
    "The service sends again what was read, at a position instead of after it.": (
        "tests/kinesis/test_subscription.py::test_a_record_that_is_not_after_the_position_is_malformed",
        "tests/kinesis/test_subscription.py::test_a_record_that_comes_again_in_the_next_event_is_malformed",
        "tests/kinesis/test_subscription.py::test_a_position_is_written_as_the_service_wants_it",
        "tests/kinesis/test_subscription.py::test_a_subscription_inside_a_record_begins_with_its_rest",
    ),
    "The retention is shortened: lost records are reported, and read ones are not.": (
        "tests/kinesis/test_recovery.py::test_records_that_expire_while_their_reader_is_slow_are_never_skipped_in_silence",
        "tests/kinesis/test_recovery.py::test_nothing_is_lost_where_only_what_was_read_has_expired",
        "tests/kinesis/test_doctor.py::test_unread_records_with_less_than_a_quarter_of_their_time_are_a_warning",
    ),
}

SHARD_ENDS: Final[Lines] = {
    "A shard ends: it is not subscribed to again, and its children are.": (
        "tests/kinesis/test_subscription.py::test_nothing_is_read_after_the_end",
        "tests/core/test_subscriber.py::test_an_end_is_delivered_once_although_closing_fails",
        "tests/core/test_supervisor.py::test_children_are_read_after_a_split",
    ),
    "The last event has records as well.": (
        "tests/kinesis/test_subscription.py::test_the_last_event_may_have_records",
        "tests/kinesis/test_resharding.py::test_the_last_records_of_a_shard_may_come_together_with_its_end",
    ),
    "A shard ends by one of the two signs alone: it is asked for, and not believed.": (
        "tests/kinesis/test_subscription.py::test_no_continuation_without_children_is_no_end",
        "tests/kinesis/test_subscription.py::test_a_continuation_with_children_is_no_end",
        "tests/kinesis/test_recovery.py::test_one_sign_of_the_end_of_a_closed_shard_loses_nothing",
        "tests/kinesis/test_recovery.py::test_a_shard_that_never_sends_both_signs_ends_where_the_listing_confirms_it",
        "tests/kinesis/test_recovery.py::test_one_sign_of_an_end_is_not_believed_of_an_open_shard",
    ),
    "A restart exactly at the end of a shard.": (
        "tests/kinesis/test_resharding.py::test_a_finished_shard_is_not_subscribed_to_again_after_a_restart",
        "tests/kinesis/test_recovery.py::test_a_number_beyond_the_end_of_a_closed_shard_is_its_end",
        "tests/core/test_progress.py::test_a_split_has_ended_for_a_restart_only_when_all_of_it_is_acknowledged",
    ),
    "Children begin at their horizon, after all their parents.": (
        "tests/core/test_splits.py::test_every_split_is_read_once_and_after_all_its_parents",
        "tests/core/test_supervisor.py::test_a_new_split_found_by_discovery_starts_at_the_horizon",
        "tests/core/test_supervisor.py::test_a_child_does_not_start_before_the_reader_has_taken_the_end",
        "tests/kinesis/test_resharding.py::test_a_storm_of_reshards_while_writing_and_reading_loses_and_repeats_nothing",
    ),
    "A merged shard has two parents, one slower than the other.": (
        "tests/core/test_supervisor.py::test_a_merged_split_is_read_after_both_parents",
        "tests/kinesis/test_resharding.py::test_a_merged_shard_waits_for_the_slower_of_its_parents",
    ),
    "A restart in the middle of a reshard, and of every reshard of many.": (
        "tests/core/test_fan_out.py::test_a_restart_at_any_point_continues_after_what_was_acknowledged",
        "tests/kinesis/test_source.py::test_a_restart_in_the_middle_of_a_reshard_neither_skips_nor_repeats",
        "tests/kinesis/test_resharding.py::test_a_restart_after_every_few_events_of_a_storm_loses_and_repeats_nothing",
        "tests/core/test_fan_out.py::test_a_split_that_has_ended_is_not_subscribed_again_by_the_next_run",
    ),
    "A child is listed before its parent ends, or named by its end before it is listed.": (
        "tests/core/test_supervisor.py::test_a_child_that_is_listed_before_its_parent_ends_waits",
        "tests/core/test_supervisor.py::test_children_that_the_end_names_start_before_they_are_listed",
        "tests/core/test_supervisor.py::test_a_child_with_a_parent_that_nobody_has_seen_waits_until_that_one_is_listed",
    ),
    "A shard has expired with records that were not read: an error, or a counted gap.": (
        "tests/kinesis/test_recovery.py::test_a_shard_that_expired_before_it_was_read_ends_the_stream_with_its_name",
        "tests/kinesis/test_recovery.py::test_a_shard_that_expired_is_a_counted_gap_where_that_is_allowed",
        "tests/kinesis/test_recovery.py::test_a_shard_that_expired_after_it_was_read_to_its_end_is_finished",
    ),
    "The shard has expired, its consumer was deregistered, or the stream deleted: three errors.": (
        "tests/kinesis/test_recovery.py::test_a_consumer_that_somebody_deregistered_is_registered_again_once_for_all_shards",
        "tests/kinesis/test_recovery.py::test_a_consumer_that_was_given_by_its_arn_and_is_gone_ends_the_stream",
        "tests/kinesis/test_recovery.py::test_a_stream_that_was_deleted_ends_the_reading_with_its_name",
        "tests/kinesis/test_recovery.py::test_a_stream_that_replaces_the_one_that_is_read_is_not_read",
        "tests/kinesis/test_recovery.py::test_a_shard_that_expired_before_it_was_read_ends_the_stream_with_its_name",
    ),
}

CONSUMERS: Final[Lines] = {
    "A consumer is of another account's stream of that name: nothing is read.": (
        "tests/kinesis/test_source.py::test_a_consumer_of_another_accounts_stream_is_refused_before_anything_is_read",
    ),
    "The stream does not exist.": (
        "tests/kinesis/test_source.py::test_a_stream_that_does_not_exist_is_named",
    ),
    "The consumer does not exist: it is registered; one that was given by its ARN is an error.": (
        "tests/kinesis/test_registration.py::test_a_consumer_that_is_missing_is_registered",
        "tests/kinesis/test_registration.py::test_an_arn_that_does_not_exist_is_named_and_not_registered",
    ),
    "The consumer exists.": (
        "tests/kinesis/test_registration.py::test_a_consumer_that_exists_is_adopted",
        "tests/kinesis/test_registration.py::test_a_consumer_that_was_adopted_is_not_deregistered",
    ),
    "The consumer is being created, here or by another client: the stream waits.": (
        "tests/kinesis/test_registration.py::test_a_consumer_is_waited_for_while_it_is_created",
        "tests/kinesis/test_registration.py::test_a_consumer_that_somebody_else_creates_is_adopted_after_five_looks",
    ),
    "The consumer is never ready: an error after a minute.": (
        "tests/kinesis/test_registration.py::test_a_consumer_that_is_never_created_is_an_error_after_a_minute",
    ),
    "The consumer is being deleted: waited for and registered again, or an error for an ARN.": (
        "tests/kinesis/test_registration.py::test_a_consumer_that_is_being_deleted_is_waited_for_and_registered_again",
        "tests/kinesis/test_registration.py::test_an_arn_that_is_being_deleted_is_an_error_at_once",
    ),
    "Two processes register the same name at once.": (
        "tests/kinesis/test_registration.py::test_two_transports_register_one_name_at_once",
        "tests/kinesis/test_registration.py::test_a_name_that_somebody_else_registers_at_the_same_time_is_adopted",
    ),
    "Describing and registering are throttled, or the quota of consumers is reached.": (
        "tests/kinesis/test_registration.py::test_a_throttled_call_is_repeated",
        "tests/kinesis/test_registration.py::test_a_limit_that_stays_is_told_by_name",
    ),
    "A permission is missing: the error names the action to grant.": (
        "tests/kinesis/test_registration.py::test_a_missing_permission_names_what_to_grant",
        "tests/kinesis/test_registration.py::test_the_permission_to_register_is_named",
        "tests/kinesis/test_policy.py::test_a_denied_call_names_the_action_that_is_missing",
    ),
    "The service describes a consumer without its ARN, or not at all.": (
        "tests/kinesis/test_client.py::test_a_description_without_what_it_must_have_is_a_service_error",
    ),
    "Deregistering hangs or is refused: the stream closes all the same, and says what stays.": (
        "tests/kinesis/test_registration.py::test_a_deregistration_takes_10_seconds_at_most",
        "tests/kinesis/test_registration.py::test_a_deregistration_that_fails_is_told_to_the_log_and_raises_nothing",
    ),
}

WRITING: Final[Lines] = {
    "Some records of a call fail, or a shard throttles: these are put again, each key in order.": (
        "tests/kinesis/writer/test_writer.py::test_no_record_is_lost_and_each_key_keeps_its_order",
        "tests/kinesis/writer/test_writer.py::test_only_the_failed_records_are_put_again",
        "tests/kinesis/writer/test_writer.py::test_the_limits_of_a_shard_are_kept_by_waiting",
    ),
    "The answer to a put is lost or never comes: it is put again, and ids find the repeats.": (
        "tests/kinesis/writer/test_writer.py::test_a_call_without_an_answer_is_made_again",
        "tests/kinesis/writer/test_writer.py::test_ids_are_read_back_and_records_without_one_stay",
        "tests/spark/sinks/kinesis/test_kinesis_sink.py::test_a_batch_that_is_written_again_has_the_same_ids",
    ),
    "Shards are split and merged while records are put: each key keeps its order.": (
        "tests/kinesis/writer/test_writer.py::test_resharding_while_writing_loses_nothing_and_keeps_the_order",
        "tests/kinesis/writer/test_shard_queues.py::test_one_record_of_a_key_is_under_way_wherever_its_key_goes",
    ),
    "Many writers fill one shard for longer than the timeout: all of them get through.": (
        "tests/kinesis/writer/test_delivery_timeout.py::test_many_tasks_that_fill_one_shard_for_longer_than_the_timeout_all_get_through",
        "tests/kinesis/writer/test_shard_queues.py::test_what_was_refused_is_put_again_before_what_never_was",
    ),
    "Records are never taken: an error in time.": (
        "tests/kinesis/writer/test_writer.py::test_records_that_are_never_taken_are_an_error_in_time",
    ),
    "A put is denied, or its credentials expire: an error that names the grant, or new ones.": (
        "tests/kinesis/writer/test_writer.py::test_what_the_service_refuses_for_good_is_an_error_that_says_what_to_do",
        "tests/kinesis/writer/test_writer.py::test_credentials_that_expire_are_renewed",
    ),
    "A task is cancelled while it writes: the writer goes on.": (
        "tests/kinesis/writer/test_writer.py::test_a_call_that_is_cancelled_leaves_the_writer_as_it_was",
    ),
    "A job that writes to Kinesis is killed: nothing is lost, and ids find the repeats.": (
        "tests/examples/test_kinesis_to_kinesis.py::test_a_kill_loses_nothing_and_repeats_are_found_by_their_id",
        "tests/provers/tests/crash/test_sinks.py::test_a_kill_loses_and_duplicates_nothing",
    ),
}

TABLES: Final[Lines] = {
    "A job that writes to a table is killed at each step of a batch: the batch is there once.": (
        "tests/provers/tests/crash/test_sinks.py::test_a_kill_loses_and_duplicates_nothing",
        "tests/examples/test_kinesis_to_parquet.py::test_a_kill_loses_and_repeats_nothing",
        "tests/examples/test_kinesis_to_delta.py::test_a_kill_loses_and_repeats_nothing",
        "tests/examples/test_kinesis_to_iceberg.py::test_a_kill_loses_and_repeats_nothing",
        "tests/examples/test_kafka_to_postgres.py::test_a_kill_loses_and_repeats_nothing",
    ),
    "Workers of each sink are killed, and the driver between two sinks: each row is there once.": (
        "tests/spark/sinks/tables/test_killed.py::test_kills_of_workers_and_between_two_sinks_lose_and_repeat_nothing",
    ),
    "Two queries share a session: each commits under its own id.": (
        "tests/spark/sinks/tables/test_lakehouse_sinks.py::test_queries_of_one_session_commit_under_their_own_ids",
    ),
    "Another session has written a batch: a table in a cache does not hide it.": (
        "tests/spark/sinks/tables/test_lakehouse_sinks.py::test_a_batch_that_another_session_has_written_is_found",
    ),
    "A value looks like a number in the name of a directory: it is read as it was written.": (
        "tests/spark/sinks/tables/test_parquet_sink.py::test_partitions_are_read_as_they_were_written",
        "tests/spark/sinks/tables/test_parquet_sink.py::test_columns_with_the_names_of_directories_are_refused",
    ),
    "A batch comes again that the table has: it is not written.": (
        "tests/spark/sinks/tables/test_parquet_sink.py::test_a_batch_that_comes_again_is_written_once",
        "tests/spark/sinks/tables/test_lakehouse_sinks.py::test_a_batch_that_comes_again_is_written_once",
        "tests/spark/sinks/tables/test_postgres_sink.py::test_a_batch_that_comes_again_is_written_once",
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_a_batch_that_comes_again_is_written_once",
    ),
    "Other writers commit to the table in between: the batch is found behind their commits.": (
        "tests/spark/sinks/tables/test_lakehouse_sinks.py::test_other_writers_do_not_hide_a_batch",
        "tests/spark/sinks/tables/test_lakehouse_sinks.py::test_the_newest_snapshot_of_a_query_is_enough",
    ),
    "A killed attempt leaves files or tables behind: readers never see them.": (
        "tests/spark/sinks/tables/test_parquet_sink.py::test_a_batch_without_the_marker_is_not_read_and_is_written_anew",
        "tests/spark/sinks/tables/test_postgres_sink.py::test_what_a_killed_attempt_left_is_dropped",
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_what_a_killed_attempt_left_is_dropped",
    ),
    "The server crashes between the tasks and the transaction: the lost rows are missed.": (
        "tests/spark/sinks/tables/test_postgres_sink.py::test_copied_rows_that_a_crash_takes_are_written_again",
        "tests/spark/sinks/tables/test_postgres_sink.py::test_a_crash_in_the_transaction_takes_all_of_it",
    ),
    "The connection to a database is lost before the commit: nothing of the batch is left.": (
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_a_connection_that_is_lost_before_the_commit_leaves_nothing",
    ),
    "A task of Spark has filled a staging table twice: the counts differ.": (
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_a_task_that_wrote_twice_is_found",
    ),
    "A server or the lock of a dead run answers nothing: the wait ends in time.": (
        "tests/spark/sinks/tables/test_postgres_connection.py::test_limits_are_added_where_the_user_names_none",
        "tests/spark/sinks/tables/test_postgres_sink.py::test_waits_for_locks_are_bounded",
        "tests/spark/sinks/tables/test_postgres_sink.py::test_what_a_session_waits_for_is_bounded",
    ),
    "Two runs write one batch at once: the database takes it from one of them.": (
        "tests/spark/sinks/tables/test_postgres_sink.py::test_two_runs_that_write_one_batch_write_it_once",
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_two_runs_that_write_one_batch_write_it_once",
    ),
    "A run that lost its checkpoint to another one writes nothing more.": (
        "tests/spark/sinks/tables/test_parquet_sink.py::test_a_run_that_lost_the_checkpoint_writes_nothing",
        "tests/spark/sinks/tables/test_lakehouse_sinks.py::test_a_run_that_lost_the_checkpoint_writes_nothing",
        "tests/spark/sinks/tables/test_postgres_sink.py::test_a_run_that_lost_the_checkpoint_writes_nothing",
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_a_run_that_lost_the_checkpoint_writes_nothing",
    ),
    "A grant, a column or a library is missing, or the server is away: an error that says so.": (
        "tests/spark/sinks/tables/test_postgres_sink.py::test_grants_that_are_missing_are_named",
        "tests/spark/sinks/tables/test_postgres_sink.py::test_columns_that_do_not_fit_are_errors",
        "tests/spark/sinks/tables/test_postgres_sink.py::test_a_bad_place_is_said_before_the_first_record",
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_columns_that_do_not_fit_are_errors",
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_a_bad_place_is_said_before_the_first_record",
        "tests/spark/sinks/tables/test_postgres_connection.py::test_a_malformed_string_is_not_quoted",
        "tests/spark/sinks/tables/test_postgres_connection.py::test_a_server_that_cannot_be_reached_is_named",
        "tests/spark/sinks/tables/test_lakehouse_sinks.py::test_missing_jars_are_said_before_the_first_record",
        "tests/spark/sinks/tables/test_parquet_sink.py::test_a_file_system_that_spark_lacks_is_said_before_the_first_record",
    ),
    "The database refuses a value: the error names no value.": (
        "tests/spark/sinks/tables/test_postgres_sink.py::test_what_the_database_refuses_is_said_without_data",
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_a_value_that_does_not_fit_is_said_without_it",
        "tests/spark/sinks/tables/test_jdbc_sink.py::test_what_a_constraint_refuses_leaves_nothing",
    ),
}

SURVIVED: Final = {
    "subscribing": SUBSCRIBING,
    "streaming": STREAMING,
    "bytes": BYTES,
    "positions": POSITIONS,
    "shard ends": SHARD_ENDS,
    "consumers": CONSUMERS,
    "writing": WRITING,
    "tables": TABLES,
    "kafka: brokers": kafka.BROKERS,
    "kafka: topics": kafka.TOPICS,
    "kafka: records": kafka.RECORDS,
    "kafka: offsets": kafka.OFFSETS,
    "kafka: transactions": kafka.TRANSACTIONS,
    "kafka: writing": kafka.WRITING,
    "kafka: answers": kafka.ANSWERS,
}

# What the embedded server can only claim, and `make live STREAM=...` shows on a stream of yours. A
# line without a test waits for a run on such a stream.
ONLY_THE_SERVICE: Final[Lines] = {
    "A subscription ends in peace after five minutes, and goes on in the next.": (
        "tests/conformance/test_subscriptions.py::test_a_subscription_ends_in_peace_after_its_time_and_goes_on_in_the_next",
    ),
    "Another process takes a subscription over after five seconds, and is refused before.": (
        "tests/conformance/test_subscriptions.py::test_a_later_subscription_takes_over",
        "tests/conformance/test_subscriptions.py::test_a_second_subscription_is_refused_soon_after_the_first",
    ),
    "Heartbeats come every five seconds.": (
        "tests/conformance/test_subscriptions.py::test_a_subscription_is_never_silent_for_longer_than_a_heartbeat",
    ),
    "The clock of the Date header is the one that stamps records.": (
        "tests/conformance/test_clock.py::test_the_date_header_is_the_clock_that_stamps_records",
    ),
    "A continuation neither skips nor repeats, that of a heartbeat included.": (
        "tests/conformance/test_positions.py::test_after_a_continuation_nothing_is_skipped_and_nothing_repeated",
        "tests/conformance/test_positions.py::test_after_the_continuation_of_a_heartbeat_the_next_record_comes",
    ),
    "A record of the largest size that the stream takes comes whole.": (
        "tests/conformance/test_records.py::test_a_record_of_the_largest_size_comes_whole",
    ),
    "What a shard's end looks like, and how a shard is gone, as the tests never reshard.": (),
    "A KMS key that is changed in the middle of a subscription.": (),
    "A thousand shards, and the limits of an account for them.": (),
}


@functools.cache
def defined_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file, without importing it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


@pytest.mark.parametrize("lines", [*SURVIVED.values(), ONLY_THE_SERVICE], ids=[*SURVIVED, "live"])
def test_every_test_that_is_named_exists(lines: Lines) -> None:
    names = [name for tests in lines.values() for name in tests]
    missing = [
        name
        for name in names
        for path, _, test in [name.partition("::")]
        if not test.startswith("test_") or test not in defined_in(path)
    ]
    assert missing == []


@pytest.mark.parametrize("lines", SURVIVED.values(), ids=SURVIVED)
def test_every_line_names_a_test_and_none_twice(lines: Lines) -> None:
    assert [line for line, tests in lines.items() if not tests] == []
    assert [line for line, tests in lines.items() if len(set(tests)) != len(tests)] == []


def test_what_only_the_service_shows_is_tested_by_the_live_run() -> None:
    names = [name for tests in ONLY_THE_SERVICE.values() for name in tests]
    assert all(name.startswith("tests/conformance/") for name in names)
