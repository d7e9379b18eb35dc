"""Mistakes that no simulator reaches, each with the test of `make test-all` that finds it.

`python -m tests.provers.planted.tested_bugs NAME` runs the test of a mistake with it.
"""

from __future__ import annotations

import ast
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from pyarrow.compute import sort_indices

from fanout.core import user_functions
from fanout.core.fan_out import FanOut
from fanout.core.positions import Timestamp
from fanout.core.user_decode import UserDecode
from fanout.errors import RetryLaterError
from fanout.kafka.reading.client import _Client
from fanout.kafka.reading.offsets import OffsetResolver
from fanout.kafka.reading.subscription import PartitionReader
from fanout.kafka.reading.transport import is_replaced
from fanout.kinesis import opening
from fanout.kinesis.aws import client
from fanout.kinesis.aws.client_config import pinned_config
from fanout.kinesis.aws.error_hints import _hint_of_call
from fanout.kinesis.chosen_shards import ShardChoice
from fanout.kinesis.connection import KinesisConnection
from fanout.landing.log import columns
from fanout.landing.log.bad_places import BadRecordPlaces
from fanout.landing.retention import Retention
from fanout.landing.segments import partitions
from fanout.landing.segments.bad_records import BadRecordFiles
from fanout.landing.segments.segment_filler import SegmentFiller
from fanout.landing.segments.segments import OpenSegment
from fanout.landing.storage import object_errors
from fanout.spark.dataframe.landing_thread import LandingThread
from fanout.spark.hadoop.write_once import WriteOnce, _choose_creation
from fanout.spark.query.batch_runner import BatchRunner
from fanout.spark.query.failed_batches import FailedBatches
from fanout.spark.query.query_stream import QueryStream
from fanout.spark.sinks.kinesis.task import RowIds
from fanout.spark.sinks.sink_batch import SinkBatch
from fanout.spark.sinks.tables.columns import check_kept
from fanout.spark.sinks.tables.jdbc_sink import JdbcSink
from fanout.spark.sinks.tables.parquet_sink import _named
from fanout.spark.sinks.tables.postgres_connection import is_conflict
from fanout.spark.sinks.tables.postgres_sink import PostgresSink
from fanout.spark.workers import arrow_schema
from tests.provers.planted.edits import (
    ANY,
    Edit,
    called,
    case_of,
    constant,
    drop,
    has,
    node,
    on,
    statement,
    with_body,
    with_test,
    with_value,
)

if TYPE_CHECKING:
    from tests.provers.planted.edits import Change

__all__ = ("TESTED_BUGS", "TestedBug")


class TestedBug(NamedTuple):
    """A mistake and the test that finds it.

    Args:
        change: What is changed in the library.
        test: The path and the name of the test.
    """

    change: Change
    test: str


def _attribute(name: str) -> Any:
    return node(ast.Attribute, attr=name)


def _method(name: str, **parts: Any) -> Any:
    return node(ast.Call, func=_attribute(name), **parts)


def _overwriting(made: ast.Call) -> ast.Call:
    assert isinstance(made.func, ast.Attribute)
    made.func.attr = "overwrite"
    made.args = [ast.Constant(value=True)]
    return made


def _replacing(made: ast.Call) -> ast.Call:
    made.args[1] = ast.Constant(value=True)
    return made


def _closing(abort: ast.Attribute) -> ast.Attribute:
    abort.attr = "close"
    return abort


def _look_ups_swapped(body: list[ast.stmt]) -> list[ast.stmt]:
    first, second = (n for n, each in enumerate(body) if has(_method("offsets"))(each))
    body[first], body[second] = body[second], body[first]
    return body


def _adaptive(mode: ast.Constant) -> ast.Constant:
    mode.value = "adaptive"
    return mode


def _first_two_swapped(body: list[ast.stmt]) -> list[ast.stmt]:
    return [body[1], body[0], *body[2:]]


def _reversed(call: ast.Call) -> ast.expr:
    return ast.parse(f"{ast.unparse(call)}[::-1]", mode="eval").body


def _unsorted(_: ast.expr) -> ast.expr:
    return ast.parse("records", mode="eval").body


def _last_alone(_: ast.expr) -> ast.expr:
    return ast.parse("(last,)", mode="eval").body


def _catches_nothing(handler: ast.ExceptHandler) -> ast.ExceptHandler:
    handler.type = ast.Tuple([], ast.Load())
    return handler


def _of_the_first(last: ast.Attribute) -> ast.Attribute:
    last.value = ast.parse("pending[0]", mode="eval").body
    return last


_MIXED: Final = (
    "tests/landing/log/test_columns.py"
    "::test_a_run_that_would_mix_a_landing_is_refused_before_it_writes"
)
_FILES: Final = "tests/spark/hadoop/test_write_once.py"
_FUNCTION: Final = node(ast.AsyncFunctionDef)
_HSYNC: Final = node(ast.If, body=[node(ast.Expr, value=_method("hsync"))])
_LATER: Final = node(ast.ExceptHandler, type=node(ast.Name, id=RetryLaterError.__name__))
_LAST_POSITIONS: Final = node(ast.Attribute, value=node(ast.Name, id="last"), attr="positions")

TESTED_BUGS: Final[dict[str, TestedBug]] = {
    "a listing is not begun anew": TestedBug(
        (Edit(client.all_pages, on(node(ast.If), with_test(constant(value=True)))),),
        "tests/kinesis/test_client.py::test_a_listing_whose_page_token_expires_begins_anew",
    ),
    "a consumer of another account's stream is used": TestedBug(
        (Edit(opening._check_owner, on(node(ast.If), drop)),),
        "tests/kinesis/test_source.py::"
        "test_a_consumer_of_another_accounts_stream_is_refused_before_anything_is_read",
    ),
    "retries follow the environment": TestedBug(
        (Edit(pinned_config, on(node(ast.Constant, value="standard"), _adaptive)),),
        "tests/kinesis/test_environment.py::"
        "test_the_configuration_of_a_session_changes_no_retries_either",
    ),
    "a second writer also succeeds": TestedBug(
        (
            Edit(
                WriteOnce._put_if_absent,
                on(node(ast.If, test=ast.BoolOp), with_test(constant(value=False))),
            ),
        ),
        f"{_FILES}::test_of_two_writers_at_once_the_slower_one_is_refused",
    ),
    "a conditional put overwrites": TestedBug(
        (Edit(WriteOnce._put_if_absent, on(_method("must"), _overwriting)),),
        f"{_FILES}::test_a_second_writer_is_refused_and_changes_nothing",
    ),
    "a put overwrites": TestedBug(
        (
            Edit(
                WriteOnce.write,
                on(_method("create", args=[node(ast.Name, id="final"), ANY]), _replacing),
            ),
        ),
        f"{_FILES}::test_a_second_writer_is_refused_and_changes_nothing",
    ),
    "a put that breaks is closed": TestedBug(
        (Edit(WriteOnce._fill, on(_attribute("abort"), _closing)),),
        f"{_FILES}::test_no_file_is_left_of_a_write_that_breaks_half_way",
    ),
    "a file is renamed before it is on disk": TestedBug(
        (Edit(WriteOnce._fill, on(_HSYNC, drop)),),
        f"{_FILES}::test_a_file_is_on_disk_before_it_has_its_name",
    ),
    "an object of GCS is renamed": TestedBug(
        (Edit(_choose_creation, on(node(ast.IfExp), lambda either: either.orelse)),),
        f"{_FILES}::test_an_object_is_put_under_its_own_name",
    ),
    "ends are looked up after times": TestedBug(
        (Edit(OffsetResolver._look_up, on(_FUNCTION, with_body(_look_ups_swapped))),),
        "tests/kafka/test_offsets.py::test_a_record_that_comes_during_the_look_up_is_not_lost",
    ),
    "the end of one partition is looked up after the time": TestedBug(
        (
            Edit(
                PartitionReader._first_offset,
                on(case_of(Timestamp), with_body(_first_two_swapped)),
            ),
        ),
        "tests/kafka/test_subscription.py::test_a_record_that_comes_during_the_look_up_is_not_lost",
    ),
    "a topic is taken for another one by its name": TestedBug(
        (Edit(is_replaced, on(node(ast.Compare), constant(value=False))),),
        "tests/kafka/test_data_loss.py"
        "::test_a_position_of_another_topic_by_the_same_name_is_a_loss",
    ),
    "a segment may outlive the locks of its records": TestedBug(
        (Edit(QueryStream._serve_acquired, on(called(min), lambda made: made.args[0])),),
        "tests/spark/test_query_stream.py"
        "::test_a_segment_is_filled_for_a_third_of_its_locks_time_at_most",
    ),
    "a batch has the positions of its first segment": TestedBug(
        (Edit(BatchRunner.run, on(_LAST_POSITIONS, _of_the_first)),),
        "tests/spark/test_batch_runner.py"
        "::test_a_batch_of_several_segments_ends_where_the_last_one_does",
    ),
    "a batch is not repeated with another stream": TestedBug(
        (
            Edit(
                FanOut.acknowledge,
                on(
                    node(ast.If, test=has(_attribute("_resumed"))),
                    with_test(constant(value=False)),
                ),
            ),
        ),
        "tests/kinesis/test_several_streams.py"
        "::test_positions_that_a_stream_resumed_from_are_acknowledged_by_their_old_names",
    ),
    "two readers of chosen shards have the child of a merge": TestedBug(
        (
            Edit(
                ShardChoice._followed,
                on(node(ast.IfExp), with_test(constant(value=True))),
            ),
        ),
        "tests/kinesis/test_chosen_shards.py"
        "::test_a_choice_follows_the_older_parent_alone_or_either",
    ),
    "a code gets the advice of another call": TestedBug(
        (
            Edit(
                _hint_of_call,
                on(
                    node(ast.If, test=has(node(ast.Name, id="_HINTS_OF_CALL"))),
                    with_test(constant(value=False)),
                ),
            ),
        ),
        "tests/kinesis/test_error_hints.py"
        "::test_each_documented_error_of_each_call_has_its_own_advice",
    ),
    "copies of a reader are not warned of": TestedBug(
        (
            Edit(
                KinesisConnection.verdict,
                on(
                    node(ast.If, test=has(node(ast.Name, id="TAKEN_OVER"))),
                    with_test(constant(value=False)),
                ),
            ),
        ),
        "tests/kinesis/test_chosen_shards.py"
        "::test_copies_that_take_a_shard_from_each_other_are_warned_of_once",
    ),
    "rows of two batches have one id": TestedBug(
        (Edit(RowIds._next, on(node(ast.Constant, value=b" %d %s"), constant(b"%d %s"))),),
        "tests/spark/sinks/kinesis/test_kinesis_sink.py"
        "::test_no_row_of_another_batch_has_the_same_id",
    ),
    "an entry counts as unread that the query has read": TestedBug(
        (
            Edit(
                LandingThread._land,
                on(node(ast.If, test=has(_attribute("_needed"))), with_test(constant(value=True))),
            ),
        ),
        "tests/spark/dataframe/test_source_reader.py"
        "::test_an_entry_that_was_read_at_once_is_not_waited_for",
    ),
    "a coroutine that a handler returns is dropped": TestedBug(
        (Edit(user_functions.call, on(node(ast.If), with_test(constant(value=False)))),),
        "tests/spark/test_user_functions.py"
        "::test_a_handler_that_returns_its_work_undone_loses_no_batch",
    ),
    "a batch that was set aside is handled again": TestedBug(
        (
            Edit(
                FailedBatches.begun,
                on(
                    node(ast.If, test=has(node(ast.Name, id="batch"))),
                    with_test(constant(value=True)),
                ),
            ),
        ),
        "tests/spark/test_batch_runner.py"
        "::test_a_replay_of_a_batch_that_was_set_aside_never_calls_the_handler",
    ),
    "seconds of a duration are read as microseconds": TestedBug(
        (
            Edit(
                arrow_schema._is_read,
                on(
                    node(ast.If, test=has(_attribute("is_duration"))),
                    with_body(lambda _: [ast.Return(ast.Constant(value=True))]),
                ),
            ),
        ),
        "tests/spark/test_arrow_types.py"
        "::test_a_type_that_spark_does_not_read_is_refused_with_its_column",
    ),
    "an answer that a quota keeps back is taken for damage": TestedBug(
        (
            Edit(
                _Client.fetch,
                on(
                    node(ast.If, test=has(_attribute("throttle_time_ms"))),
                    with_test(constant(value=False)),
                ),
            ),
        ),
        "tests/kafka/test_throttling.py::test_an_answer_without_topics_is_throttled",
    ),
    "records are bad while what decode needs is unavailable": TestedBug(
        (Edit(UserDecode.__call__, on(_LATER, _catches_nothing)),),
        "tests/core/test_batch_decoder.py"
        "::test_an_outage_in_decode_loses_nothing_and_leaves_nothing_out",
    ),
    "a batch of a copied checkpoint counts as that of the sink": TestedBug(
        (
            Edit(
                SinkBatch.is_in,
                on(
                    node(ast.If, test=has(_attribute("content"))),
                    with_test(constant(value=True)),
                ),
            ),
        ),
        "tests/spark/sinks/tables/test_parquet_sink.py"
        "::test_a_copy_of_a_checkpoint_loses_no_record_without_an_error",
    ),
    "rows that a crash of the server took are not missed": TestedBug(
        (
            Edit(
                PostgresSink._check_counts,
                on(
                    node(ast.If, test=has(node(ast.Name, id="copied"))),
                    with_test(constant(value=False)),
                ),
            ),
        ),
        "tests/spark/sinks/tables/test_postgres_sink.py"
        "::test_copied_rows_that_a_crash_takes_are_written_again",
    ),
    "a landing takes files in other directories": TestedBug(
        (Edit(columns.continued, on(statement(columns._check_directories), drop)),), _MIXED
    ),
    "a landing takes records with other columns": TestedBug(
        (Edit(columns._added, on(node(ast.For), drop)),), _MIXED
    ),
    "an empty text has the directory of null": TestedBug(
        (
            Edit(
                partitions._text,
                on(
                    node(ast.If, test=has(node(ast.Name, id="_NULL"))),
                    with_test(constant(value=False)),
                ),
            ),
        ),
        "tests/landing/segments/test_partitions.py"
        "::test_a_value_that_no_directory_keeps_ends_the_run",
    ),
    "records of a partition are in another order": TestedBug(
        (Edit(partitions._split, on(called(sort_indices), _reversed)),),
        "tests/landing/segments/test_partitions.py::test_levels_of_directories_and_row_groups",
    ),
    "an entry without bad records has a file of them": TestedBug(
        (
            Edit(
                OpenSegment.add,
                on(
                    node(ast.If, test=node(ast.Attribute, value=node(ast.Name, id="bad"))),
                    with_test(constant(value=True)),
                ),
            ),
        ),
        "tests/landing/test_bad_records.py::test_an_entry_without_bad_records_has_no_file_of_them",
    ),
    "a copy of a landing deletes what the original is writing": TestedBug(
        (
            Edit(
                BadRecordPlaces._report,
                on(
                    called(BadRecordPlaces._files),
                    lambda _: (
                        ast.parse(
                            "BadRecordFiles(place.location, None, read_identity(self._storage).id, "
                            "place.landing, 1)",
                            mode="eval",
                        ).body
                    ),
                ),
            ),
        ),
        "tests/landing/test_bad_records.py::test_a_copy_lets_the_original_write_its_bad_records",
    ),
    "bad records of a killed run stay": TestedBug(
        (
            Edit(
                BadRecordFiles.left,
                on(
                    node(ast.If, test=has(node(ast.Name, id="named"))),
                    with_test(constant(value=False)),
                ),
            ),
        ),
        "tests/landing/test_bad_records.py"
        "::test_what_was_left_is_found_after_a_run_that_remembers_nothing",
    ),
    "what comes late of a run is not deleted by a later one": TestedBug(
        (
            Edit(
                BadRecordPlaces._sweep,
                on(
                    node(ast.Dict),
                    lambda _: ast.parse("{self._ownership.run: self._first}", mode="eval").body,
                ),
            ),
        ),
        "tests/landing/test_bad_records.py"
        "::test_what_comes_late_of_a_run_that_was_overtaken_is_deleted_by_a_later_one",
    ),
    "bad records are behind all others": TestedBug(
        (Edit(UserDecode.with_bad, on(node(ast.Return), with_value(_unsorted))),),
        "tests/landing/test_bad_records.py::test_bad_records_are_in_a_file_once",
    ),
    "a put that a store asks for again is not made": TestedBug(
        (Edit(object_errors.asks_again, on(node(ast.Return), with_value(constant(value=False)))),),
        "tests/landing/storage/test_object_storage_faults.py"
        "::test_a_put_is_made_again_as_long_as_the_service_asks_for_that",
    ),
    "an entry that a list missed stays": TestedBug(
        (
            Edit(
                Retention.expire,
                on(node(ast.Call, func=node(ast.Name, id="range")), _last_alone),
            ),
        ),
        "tests/landing/test_retention.py"
        "::test_an_entry_that_a_list_missed_is_deleted_with_those_around_it",
    ),
    "a hurry has no end": TestedBug(
        (
            Edit(
                SegmentFiller._hand_over,
                on(node(ast.Assign, value=node(ast.Constant, value=False)), drop),
            ),
        ),
        "tests/landing/segments/test_segment_filler.py"
        "::test_a_hurry_is_over_with_the_segment_that_it_hurried",
    ),
    "values that PostgreSQL would cut or round are refused": TestedBug(
        (Edit(PostgresSink._take_over, on(statement(check_kept), drop)),),
        "tests/spark/sinks/tables/test_postgres_sink.py"
        "::test_values_that_their_columns_would_alter_are_refused",
    ),
    "a deadlock in PostgreSQL is tried again": TestedBug(
        (
            Edit(
                PostgresSink._write,
                on(
                    node(ast.If, test=has(called(is_conflict))),
                    with_test(constant(value=True)),
                ),
            ),
        ),
        "tests/spark/sinks/tables/test_postgres_sink.py"
        "::test_a_transaction_that_another_one_is_in_the_way_of_is_tried_again",
    ),
    "values that a database would cut or round over JDBC are refused": TestedBug(
        (Edit(JdbcSink._stage, on(statement(check_kept), drop)),),
        "tests/spark/sinks/tables/test_jdbc_sink.py"
        "::test_values_that_their_columns_would_alter_are_refused",
    ),
    "instants are directories in no time zone": TestedBug(
        (
            Edit(
                _named,
                on(
                    node(ast.If, test=has(_attribute("TimestampType"))),
                    with_test(constant(value=False)),
                ),
            ),
        ),
        "tests/spark/sinks/tables/test_parquet_sink.py::test_instants_are_directories_in_no_time_zone",
    ),
}


def run_test_of(name: str) -> int:
    """Run the test of a mistake with it, and return the exit code of pytest."""
    bug = TESTED_BUGS[name]
    with ExitStack() as edits:
        for edit in bug.change:
            edits.enter_context(edit.made())
        # fanout is imported already, and needs no rewriting of its assertions.
        imported = "-Wignore::pytest.PytestAssertRewriteWarning"
        return pytest.main([imported, "--tb=short", "-rf", bug.test])


if __name__ == "__main__":
    sys.exit(run_test_of(sys.argv[1]))
