"""What is exported of streams whose statistics are given."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import prometheus_client
import pytest

import fanout
from fanout.cli.metrics_port import served_metrics
from fanout.core.statistics import (
    BatchStatistics,
    LanderStatistics,
    LendingStatistics,
    MembershipStatistics,
    Origin,
    SinkStatistics,
    SplitState,
    StreamTotals,
    TableStatistics,
    TransactionStatistics,
    WriterStatistics,
)
from fanout.errors import OptionError
from fanout.metrics import Metrics
from tests.metrics.given import ORDERS, Given, GivenBatch, GivenQuery, split, statistics
from tests.support.collected_metrics import Collected, attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

WAITING = SplitState.WAITING


def millis() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


@pytest.fixture
def collected() -> Iterator[Collected]:
    opened = Collected(worst_splits=3)
    yield opened
    opened.provider.shutdown()


def test_every_series_says_where_the_records_come_from(collected: Collected) -> None:
    collected.metrics.watch(Given(statistics(totals=StreamTotals(7, 70))), name="etl-1")
    assert attributes(collected.all()["messaging.client.consumed.messages"]) == [
        {
            "messaging.system": "kafka",
            "messaging.destination.name": "orders",
            "messaging.consumer.group.name": "etl",
            "messaging.operation.name": "receive",
            "fanout.stream.name": "etl-1",
        }
    ]


def test_only_the_splits_that_lag_most_have_series_and_totals_have_all(
    collected: Collected,
) -> None:
    splits = {f"orders-{n}": split(float(n), behind=10 * n) for n in range(30)}
    collected.metrics.watch(Given(statistics(splits)))
    now = collected.now()
    assert now["fanout.split.lag.time"] == {"orders-29": 29.0, "orders-28": 28.0, "orders-27": 27.0}
    assert now["fanout.split.lag.records"] == {"orders-29": 290, "orders-28": 280, "orders-27": 270}
    assert now["fanout.lag.time"] == {"": 29.0}
    assert now["fanout.lag.records"] == {"": sum(10 * n for n in range(30))}


def test_a_split_that_is_not_subscribed_to_is_among_the_worst_by_its_age(
    collected: Collected,
) -> None:
    long_ago = millis() - 60_000
    splits = {f"orders-{n}": split(float(n), newest=millis()) for n in range(5)}
    splits["stuck"] = split(None, state=SplitState.BACKING_OFF, newest=long_ago)
    splits["over"] = split(None, state=SplitState.ENDED, newest=long_ago - 1)
    collected.metrics.watch(Given(statistics(splits)))
    now = collected.now()
    assert now["fanout.split.lag.time"].keys() == {"orders-4", "orders-3"}
    assert now["fanout.split.record.age"].keys() == {"stuck", "orders-4", "orders-3"}
    assert 60 <= now["fanout.split.record.age"]["stuck"] < 120
    assert now["fanout.record.age"][""] < 60
    assert now["fanout.splits"] == {"live": 5, "backing_off": 1, "ended": 1}


def test_a_split_that_was_never_read_is_the_worst(collected: Collected) -> None:
    splits = {f"orders-{n}": split(float(n), newest=millis()) for n in range(5)}
    refused = split(None, state=SplitState.BACKING_OFF, resubscriptions=7)
    splits |= {"refused": refused, "new": split(None), "child": split(None, state=WAITING)}
    collected.metrics.watch(Given(statistics(splits)))
    now = collected.now()
    assert now["fanout.split.resubscriptions"] == {"refused": 7, "orders-4": 0, "orders-3": 0}
    assert now["fanout.split.lag.time"] == {"orders-4": 4.0, "orders-3": 3.0}


def test_where_a_service_tells_no_time_the_age_of_the_last_record_is_the_lag(
    collected: Collected,
) -> None:
    """A broker says how many records are left, and not since when they are there."""
    splits = {
        "orders-0": split(None, behind=7, newest=millis() - 60_000),
        "orders-1": split(None, behind=0, newest=millis() - 90_000),
        "orders-2": split(None, behind=3),
    }
    collected.metrics.watch(Given(statistics(splits)))
    now = collected.now()
    assert now["fanout.split.lag.time"].keys() == {"orders-0"}
    assert 60 <= now["fanout.lag.time"][""] == now["fanout.split.lag.time"]["orders-0"] < 80


def test_what_waits_for_the_consumer_and_how_long(collected: Collected) -> None:
    splits = {
        "orders-0": split(0.0, waiting=0.5),
        "orders-1": split(9.0, waiting=9.0),
        "orders-2": split(0.0),
    }
    stream = Given(statistics(splits))
    collected.metrics.watch(stream)
    now = collected.now()
    assert now["fanout.splits.waiting"] == {"": 2}
    assert now["fanout.waiting.time"] == {"": 9.0}
    assert now["fanout.lag.time"] == {"": 9.0}
    stream.given = replace(stream.given, held=60.0)  # records for the next batch of a query
    now = collected.now()
    assert (now["fanout.waiting.time"], now["fanout.lag.time"]) == ({"": 60.0}, {"": 60.0})
    stream.given = statistics({"orders-0": split(0.0)})
    now = collected.now()
    assert (now["fanout.splits.waiting"], now["fanout.waiting.time"]) == ({"": 0}, {"": 0.0})


def test_no_split_has_series_where_none_is_wanted() -> None:
    collected = Collected(worst_splits=0)
    collected.metrics.watch(Given(statistics({"orders-0": split(1.0)})))
    now = collected.now()
    assert "fanout.split.lag.time" not in now
    assert now["fanout.lag.time"] == {"": 1.0}
    collected.provider.shutdown()


def test_what_is_not_known_has_no_series(collected: Collected) -> None:
    collected.metrics.watch(Given(statistics(origin=Origin("aws_kinesis", "orders"))))
    assert collected.now().keys() == {
        "messaging.client.consumed.messages",
        "fanout.consumed.bytes",
        "fanout.gaps",
        "fanout.gap.duration",
        "fanout.bad_records",
        "fanout.memory.usage",
        "fanout.splits.waiting",
    }


def test_commits_gaps_memory_and_watermark(collected: Collected) -> None:
    given = statistics(
        {"orders-0": split(None)},
        totals=StreamTotals(gaps=3, gap_seconds=4.5, bad_records=6, late_records=7, throttled=8),
        commits_succeeded=5,
        commits_failed=2,
        max_bytes_in_flight=1000,
        watermark=millis() - 5000,
    )
    collected.metrics.watch(Given(replace(given, bytes_in_flight=17)))
    now = collected.now()
    assert now["fanout.commits"] == {"stored": 5, "failed": 2}
    assert now["fanout.gaps"] == {"": 3}
    assert now["fanout.gap.duration"] == {"": 4.5}
    assert now["fanout.bad_records"] == {"": 6}
    assert now["fanout.late_records"] == {"": 7}
    assert now["fanout.throttled"] == {"": 8}
    assert (now["fanout.memory.usage"], now["fanout.memory.limit"]) == ({"": 17}, {"": 1000})
    assert 5 <= now["fanout.watermark.lag"][""] < 60


def test_the_outcomes_of_a_share_group_make_up_all_that_is_over(collected: Collected) -> None:
    lending = LendingStatistics(
        acquired=100,
        redelivered=4,
        accepted=50,
        released=10,
        rejected=5,
        expired=9,
        refused=2,
        pending_records=26,
        pending_bytes=2600,
        oldest=1.5,
        dead_letters=3,
    )
    collected.metrics.watch(Given(statistics(lending=lending)))
    now = collected.now()
    outcomes = {"accepted": 50, "released": 10, "rejected": 5, "expired": 7, "refused": 2}
    assert now["fanout.share.settled"] == outcomes
    assert sum(outcomes.values()) + 26 == 100
    assert (now["fanout.share.acquired"], now["fanout.share.redelivered"]) == ({"": 100}, {"": 4})
    assert now["fanout.share.dead_letters"] == {"": 3}
    assert now["fanout.share.pending.records"] == {"": 26}
    assert now["fanout.share.pending.bytes"] == {"": 2600}
    assert now["fanout.share.pending.age"] == {"": 1.5}
    assert "fanout.commits" not in now


def test_a_member_counts_its_splits_and_what_it_has_stored(collected: Collected) -> None:
    member = MembershipStatistics("orders-app", owned=4, granted=9, handed_over=3, lost=2)
    given = statistics(membership=member, commits_succeeded=5, commits_failed=2)
    collected.metrics.watch(Given(given))
    now = collected.now()
    assert now["fanout.member.splits"] == {"granted": 9, "handed_over": 3, "lost": 2}
    assert now["fanout.member.owned"] == {"": 4}
    assert now["fanout.commits"] == {"stored": 5, "failed": 2}


def test_landers_and_their_sessions(collected: Collected) -> None:
    lander = LanderStatistics(
        lander=0, host="a", pid=1, splits=2, segments=3, bytes_per_second=4.0, connected=5.0
    )
    stream = Given(statistics(landers=(lander,), lander_sessions=3))
    collected.metrics.watch(stream)
    assert collected.now()["fanout.lander.sessions"] == {"": 3}
    stream.given = statistics(lander_sessions=3)
    assert collected.now()["fanout.landers"] == {"": 0}


def test_tables_of_a_landing(collected: Collected) -> None:
    orders = TableStatistics("orders", 3, "it was dropped", stopped=True, failures=2)
    copy = TableStatistics("copy", commits=5, commit_seconds=0.5)
    stream = Given(statistics(tables=(orders, copy)))
    with collected.metrics.watch(stream):
        now = collected.now()
        assert now["fanout.table.entries_behind"] == {"orders": 3, "copy": 0}
    ended = collected.now()
    assert "fanout.table.entries_behind" not in ended
    assert ended["fanout.table.failures"] == {"orders": 2, "copy": 0}
    assert ended["fanout.table.commits"] == {"orders": 0, "copy": 5}
    assert ended["fanout.table.commit.duration"] == {"orders": 0.0, "copy": 0.5}


def test_batches_and_their_phases(collected: Collected) -> None:
    batches = BatchStatistics(2, 30, 4000, {"drain": 0.5, "handler": 1.5})
    query = GivenQuery(statistics(batches=batches), "orders-etl")
    collected.metrics.watch(query)
    query.listeners[0](GivenBatch(1.0))
    query.listeners[0](GivenBatch(0.5, ValueError("canary")))
    now = collected.now()
    assert (now["fanout.batches"], now["fanout.batch.records"]) == ({"": 2}, {"": 30})
    assert now["fanout.batch.bytes"] == {"": 4000}
    assert now["fanout.batch.duration"] == {"drain": 0.5, "handler": 1.5}
    assert now["messaging.process.duration"] == {"": 1, "ValueError": 1}
    for each in attributes(collected.all()["messaging.process.duration"]):
        assert each["fanout.stream.name"] == "orders-etl"
        assert each["messaging.operation.name"] == "process"


def test_a_stream_is_read_once_for_all_instruments_of_a_collection(collected: Collected) -> None:
    stream = Given(statistics({"orders-0": split(1.0)}))
    collected.metrics.watch(stream)
    for times in (1, 2, 3):
        before = stream.asked
        collected.now()
        assert stream.asked == before + 1, times


def test_a_collection_has_what_was_counted_just_before_it(collected: Collected) -> None:
    stream = Given(statistics(totals=StreamTotals(1)))
    collected.metrics.watch(stream)
    for records in (2, 3, 4):
        stream.given = statistics(totals=StreamTotals(records))
        assert collected.now()["messaging.client.consumed.messages"] == {"": records}


def test_after_its_end_the_sums_of_a_stream_stay_and_the_next_one_adds_to_them(
    collected: Collected,
) -> None:
    first = Given(statistics({"orders-0": split(9.0)}, totals=StreamTotals(3, 30, {"Cut": 1})))
    with collected.metrics.watch(first) as watched:
        assert collected.now()["fanout.lag.time"] == {"": 9.0}
        first.given = replace(first.given, totals=StreamTotals(5, 50, {"Cut": 2}))
    watched.stop()
    now = collected.now()
    assert now["messaging.client.consumed.messages"] == {"": 5}
    assert now["fanout.resubscriptions"] == {"Cut": 2}
    assert "fanout.lag.time" not in now
    second = Given(statistics(totals=StreamTotals(10, 100, {"Cut": 1, "_OTHER": 1})))
    with collected.metrics.watch(second):
        assert collected.now()["fanout.resubscriptions"] == {"Cut": 3, "_OTHER": 1}
    assert collected.now()["messaging.client.consumed.messages"] == {"": 15}
    asked = first.asked, second.asked
    collected.now()
    assert (first.asked, second.asked) == asked


def test_a_stop_in_the_middle_of_a_collection_counts_nothing_twice(collected: Collected) -> None:
    watched = collected.metrics.watch(Given(statistics(totals=StreamTotals(7, 70))))
    registry = collected.metrics._registry
    counters = {each.name: each for each in _counters()}
    assert [*registry.sums(counters["messaging.client.consumed.messages"]).values()] == [7]
    watched.stop()
    assert [*registry.sums(counters["fanout.consumed.bytes"]).values()] == [70]


def _counters() -> Any:
    from fanout.metrics.instruments import COUNTERS  # noqa: PLC0415 - of this test alone

    return COUNTERS


def test_a_query_is_unregistered_by_its_end(collected: Collected) -> None:
    query = GivenQuery(statistics({"orders-0": split(9.0)}, totals=StreamTotals(3)))
    collected.metrics.watch(query)
    assert "fanout.lag.time" in collected.now()
    query.given = replace(query.given, totals=StreamTotals(8))
    query.is_active = False
    now = collected.now()
    assert now["messaging.client.consumed.messages"] == {"": 8}
    assert "fanout.lag.time" not in now
    collected.metrics.watch(GivenQuery(statistics()))  # the next query of the same attributes
    assert collected.metrics._registry._watched.keys() != {}
    query.listeners[0](GivenBatch(1.0))
    assert "messaging.process.duration" not in collected.now()


def test_two_streams_with_the_same_attributes_need_names(collected: Collected) -> None:
    collected.metrics.watch(Given(statistics()))
    with pytest.raises(OptionError) as caught:
        collected.metrics.watch(Given(statistics()))
    assert str(caught.value) == (
        "a stream with the attributes messaging.system=kafka, messaging.destination.name=orders, "
        "messaging.consumer.group.name=etl is watched already: stop that one, or tell the two "
        "apart by name="
    )
    collected.metrics.watch(Given(statistics()), name="second")
    assert len(attributes(collected.all()["fanout.gaps"])) == 2


def test_a_negative_number_of_splits_is_refused() -> None:
    with pytest.raises(OptionError, match="worst_splits=-1 must not be negative; 0 is for none"):
        Metrics(worst_splits=-1)


def test_without_the_library_one_sentence_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from fanout.errors import SetupError\n"
        "try:\n    from fanout.metrics import Metrics\n"
        "except SetupError as error:\n    print(error)\n"
    )
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(fanout.__file__).parents[1],
    )
    assert answer.stdout.strip() == (
        "fanout.metrics.Metrics needs opentelemetry, which is not installed: "
        "pip install 'fanout-streams[otel]'"
    )


def test_a_query_that_is_watched_no_longer_calls_nothing(collected: Collected) -> None:
    query = GivenQuery(statistics(), "orders-etl")
    watched = collected.metrics.watch(query)
    assert len(query.listeners) == 1
    watched.stop()
    watched.stop()
    assert query.listeners == []


def test_a_port_is_closed_where_the_metrics_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = prometheus_client.start_http_server

    def start_and_keep(*given: Any) -> Any:
        started.append(start(*given))
        return started[-1]

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no provider")

    monkeypatch.setattr(prometheus_client, "start_http_server", start_and_keep)
    monkeypatch.setattr("opentelemetry.sdk.metrics.MeterProvider", refuse)
    with pytest.raises(RuntimeError, match="no provider"), served_metrics("127.0.0.1:0"):
        pass
    assert all(server.socket.fileno() == -1 for server, _ in started)


def test_what_a_writer_and_a_sink_have_written(collected: Collected) -> None:
    writer = WriterStatistics(
        7, 70, 3, 2, 1, 5, TransactionStatistics(begun=3, committed=1, aborted=1), ORDERS
    )
    sink = SinkStatistics(4, 40, 400, TransactionStatistics(begun=4, committed=4), ORDERS)
    collected.metrics.watch(Given(statistics(totals=StreamTotals(9))))  # of the same attributes
    with collected.metrics.watch(Given(writer)), collected.metrics.watch(Given(sink), name="sink"):
        now, found = collected.now(), collected.all()
    assert now["messaging.client.consumed.messages"] == {"": 9}
    assert now["fanout.writer.requests"] == {"": 3}
    assert now["fanout.writer.retries"] == {"": 2}
    assert now["fanout.writer.throttled"] == {"": 1}
    assert now["fanout.writer.waiting"] == {"": 5}
    assert now["fanout.sink.batches"] == {"": 4}

    def by_name(metric: str) -> dict[tuple[str, str], float]:
        return {
            (
                point.attributes.get("fanout.stream.name", ""),
                point.attributes.get("fanout.transaction.step", ""),
            ): point.value
            for point in found[metric].data.data_points
        }

    assert by_name("messaging.client.sent.messages") == {("", ""): 7, ("sink", ""): 40}
    assert by_name("fanout.sent.bytes") == {("", ""): 70, ("sink", ""): 400}
    assert by_name("fanout.transactions") == {
        ("", "begun"): 3,
        ("", "committed"): 1,
        ("", "aborted"): 1,
        ("sink", "begun"): 4,
        ("sink", "committed"): 4,
        ("sink", "aborted"): 0,
    }
    now = collected.now()  # both are watched no longer
    assert now["fanout.sink.batches"] == {"": 4}
    assert "fanout.writer.waiting" not in now
    collected.metrics.watch(Given(writer))
    with pytest.raises(OptionError, match="a writer with the attributes"):
        collected.metrics.watch(Given(writer))
