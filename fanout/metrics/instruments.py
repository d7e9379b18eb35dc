"""The instruments: name, unit, description, and what each one reads of a stream.

Names and units are those of OpenTelemetry's conventions for messaging where these have one, and
begin with `fanout.` elsewhere. `docs/observability.md` lists them for users.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from fanout.metrics.readings import StreamReading, age, lag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fanout.core.statistics import (
        LendingStatistics,
        MembershipStatistics,
        SinkStatistics,
        SplitStatistics,
        TableStatistics,
        WriterStatistics,
    )

Attributes: TypeAlias = "tuple[tuple[str, str], ...]"
Values: TypeAlias = "Iterable[tuple[float | None, Attributes]]"
Read: TypeAlias = "Callable[[Any], Values]"

ERROR: Final = "error.type"
OPERATION: Final = "messaging.operation.name"
PARTITION: Final = "messaging.destination.partition.id"


@final
@dataclass(frozen=True, slots=True)
class Instrument:
    """What is measured of each stream, or of each writer."""

    name: str
    unit: str  # in UCUM
    description: str
    read: Read  # returns the values with their attributes; a value of None is none
    of: type = StreamReading  # the type of what it reads


def _one(value: Callable[[StreamReading], float | None], *attributes: tuple[str, str]) -> Read:
    return lambda reading: [(value(reading), attributes)]


def _of_worst(value: Callable[[SplitStatistics, int], float | None]) -> Read:
    return lambda reading: [
        (value(split, reading.now), ((PARTITION, split_id),))
        for split_id, split in reading.worst.items()
    ]


def _of_lending(value: Callable[[LendingStatistics], float | None]) -> Read:
    def read(reading: StreamReading) -> Values:
        lending = reading.statistics.lending
        return [] if lending is None else [(value(lending), ())]

    return read


def _resubscriptions(reading: StreamReading) -> Iterator[tuple[int, Attributes]]:
    for cause, count in reading.statistics.totals.resubscriptions.items():
        yield count, ((ERROR, cause),)


def _throttled(reading: StreamReading) -> Values:
    statistics = reading.statistics
    if statistics.origin.system != "kafka" or statistics.lending is not None:
        return []
    return [(statistics.totals.throttled, ())]


def _commits(reading: StreamReading) -> Values:
    statistics, origin = reading.statistics, reading.statistics.origin
    has_offsets = origin.system == "kafka" and origin.group is not None
    if statistics.membership is None and (not has_offsets or statistics.lending is not None):
        return []
    outcome = "fanout.commit.outcome"
    return [
        (statistics.commits_succeeded, ((outcome, "stored"),)),
        (statistics.commits_failed, ((outcome, "failed"),)),
    ]


def _member_splits(reading: StreamReading) -> Values:
    member = reading.statistics.membership
    if member is None:
        return []
    counts = {"granted": member.granted, "handed_over": member.handed_over, "lost": member.lost}
    return [(count, (("fanout.member.event", name),)) for name, count in counts.items()]


def _of_member(value: Callable[[MembershipStatistics], float | None]) -> Read:
    def read(reading: StreamReading) -> Values:
        member = reading.statistics.membership
        return [] if member is None else [(value(member), ())]

    return read


def _settled(reading: StreamReading) -> Values:
    lending = reading.statistics.lending
    if lending is None:
        return []
    outcomes = {
        "accepted": lending.accepted,
        "released": lending.released,
        "rejected": lending.rejected,
        "expired": lending.expired - lending.refused,
        "refused": lending.refused,
    }
    return [(count, (("fanout.share.outcome", name),)) for name, count in outcomes.items()]


def _batches(value: str) -> Read:
    def read(reading: StreamReading) -> Values:
        batches = reading.statistics.batches
        return [] if batches is None else [(getattr(batches, value), ())]

    return read


def _phases(reading: StreamReading) -> Iterator[tuple[float, Attributes]]:
    if reading.statistics.batches is not None:
        for phase, seconds in reading.statistics.batches.seconds.items():
            yield seconds, (("fanout.batch.phase", phase),)


def _lander_sessions(reading: StreamReading) -> Values:
    return [(reading.statistics.lander_sessions or None, ())]


def _landers(reading: StreamReading) -> Values:
    statistics = reading.statistics
    return [(len(statistics.landers) if statistics.lander_sessions else None, ())]


def _of_tables(value: Callable[[TableStatistics], float]) -> Read:
    return lambda reading: [
        (value(table), (("fanout.table.name", table.table),)) for table in reading.statistics.tables
    ]


def _states(reading: StreamReading) -> Iterator[tuple[int, Attributes]]:
    states = Counter(split.state for split in reading.statistics.splits.values())
    for state, count in states.items():
        yield count, (("fanout.split.state", state.name.lower()),)


def _waiting(reading: StreamReading) -> int:
    return sum(split.waiting is not None for split in reading.statistics.splits.values())


def _behind(reading: StreamReading) -> int | None:
    known = [split.behind for split in reading.statistics.splits.values()]
    counts = [behind for behind in known if behind is not None]
    return sum(counts) if counts else None


def _waiting_time(reading: StreamReading) -> float | None:
    return reading.statistics.waiting if reading.statistics.splits else None


def _watermark_lag(reading: StreamReading) -> float | None:
    watermark = reading.statistics.watermark
    return None if watermark is None else (reading.now - watermark) / 1000


# Sums that never go down while the process runs.
COUNTERS: Final = (
    Instrument(
        "messaging.client.consumed.messages",
        "{message}",
        "Records handed to the consumer",
        _one(lambda reading: reading.statistics.totals.records, (OPERATION, "receive")),
    ),
    Instrument(
        "fanout.consumed.bytes",
        "By",
        "Bytes of the records handed to the consumer",
        _one(lambda reading: reading.statistics.totals.bytes),
    ),
    Instrument(
        "fanout.resubscriptions",
        "{resubscription}",
        "Recoverable ends of subscriptions and failed attempts at one, by cause",
        _resubscriptions,
    ),
    Instrument(
        "fanout.gaps",
        "{gap}",
        "How often records were lost before they were read",
        _one(lambda reading: reading.statistics.totals.gaps),
    ),
    Instrument(
        "fanout.gap.duration",
        "s",
        "How long the gaps are together, as far as it is known",
        _one(lambda reading: reading.statistics.totals.gap_seconds),
    ),
    Instrument(
        "fanout.bad_records",
        "{record}",
        "Records that were left out because decode failed for them",
        _one(lambda reading: reading.statistics.totals.bad_records),
    ),
    Instrument(
        "fanout.throttled",
        "{response}",
        "Answers in which the service slows the reader down",
        _throttled,
    ),
    Instrument(
        "fanout.late_records",
        "{record}",
        "Records whose event time was not newer than the watermark before their batch",
        _one(lambda reading: reading.statistics.totals.late_records),
    ),
    Instrument(
        "fanout.commits",
        "{request}",
        "Requests to store acknowledged positions at the service, by outcome",
        _commits,
    ),
    Instrument(
        "fanout.member.splits",
        "{split}",
        "Splits that a group gave to this process, and that went to others, by event",
        _member_splits,
    ),
    Instrument("fanout.batches", "{batch}", "Batches that were handled", _batches("batches")),
    Instrument(
        "fanout.batches.set_aside",
        "{batch}",
        "Batches that were set aside because their handler had failed",
        _batches("set_aside"),
    ),
    Instrument("fanout.batch.records", "{record}", "Records of these batches", _batches("rows")),
    Instrument("fanout.batch.bytes", "By", "Bytes of their segments", _batches("bytes")),
    Instrument("fanout.batch.duration", "s", "Seconds of these batches by phase", _phases),
    Instrument(
        "fanout.lander.sessions",
        "{session}",
        "How often a lander has connected to the driver",
        _lander_sessions,
    ),
    Instrument(
        "fanout.table.commits",
        "{commit}",
        "Commits that have added files of a landing to a table",
        _of_tables(lambda table: table.commits),
    ),
    Instrument(
        "fanout.table.commit.duration",
        "s",
        "Seconds of these commits",
        _of_tables(lambda table: table.commit_seconds),
    ),
    Instrument(
        "fanout.table.failures",
        "{failure}",
        "How often a table of a landing could not be written to",
        _of_tables(lambda table: table.failures),
    ),
    Instrument(
        "fanout.share.acquired",
        "{record}",
        "Records that the share group has locked for this stream",
        _of_lending(lambda lending: lending.acquired),
    ),
    Instrument(
        "fanout.share.redelivered",
        "{record}",
        "Those of them that had been delivered before, to any consumer",
        _of_lending(lambda lending: lending.redelivered),
    ),
    Instrument(
        "fanout.share.settled",
        "{record}",
        "Records whose lock is over, by outcome",
        _settled,
    ),
    Instrument(
        "fanout.share.dead_letters",
        "{record}",
        "Those of the released and rejected ones that the queue keeps as dead letters",
        _of_lending(lambda lending: lending.dead_letters),
    ),
)

# What is there now, and can be added up over streams.
LEVELS: Final = (
    Instrument("fanout.splits", "{split}", "Splits by what they are doing", _states),
    Instrument(
        "fanout.splits.waiting",
        "{split}",
        "Splits of which nothing more is read until the consumer takes an event",
        _one(_waiting),
    ),
    Instrument(
        "fanout.memory.usage",
        "By",
        "Bytes of events that wait for the consumer",
        _one(lambda reading: reading.statistics.bytes_in_flight),
    ),
    Instrument(
        "fanout.memory.limit",
        "By",
        "The limit of these bytes",
        _one(lambda reading: reading.statistics.max_bytes_in_flight),
    ),
    Instrument(
        "fanout.member.owned",
        "{split}",
        "Splits of a group that this process has",
        _of_member(lambda member: member.owned),
    ),
    Instrument("fanout.landers", "{lander}", "Landers that are connected", _landers),
    Instrument(
        "fanout.share.pending.records",
        "{record}",
        "Records that are held and neither acknowledged nor given back",
        _of_lending(lambda lending: lending.pending_records),
    ),
    Instrument(
        "fanout.share.pending.bytes",
        "By",
        "Their bytes",
        _of_lending(lambda lending: lending.pending_bytes),
    ),
)

# What is there now, and makes no sum.
GAUGES: Final = (
    Instrument(
        "fanout.lag.time",
        "s",
        "How far the slowest split that is read is behind its newest record",
        _one(lambda reading: reading.lag),
    ),
    Instrument(
        "fanout.lag.records",
        "{record}",
        "Records behind the ends of all splits, where the service reports it",
        _one(_behind),
    ),
    Instrument(
        "fanout.waiting.time",
        "s",
        "For how long an event has waited for the consumer, or a record for a batch, at the most",
        _one(_waiting_time),
    ),
    Instrument(
        "fanout.record.age",
        "s",
        "Time since the newest record that was handed over arrived at the service",
        _one(lambda reading: reading.age),
    ),
    Instrument(
        "fanout.watermark.lag",
        "s",
        "How far the watermark of the stream is behind the clock",
        _one(_watermark_lag),
    ),
    Instrument(
        "fanout.table.entries_behind",
        "{entry}",
        "Entries of a landing that a table may not have",
        _of_tables(lambda table: table.entries_behind),
    ),
    Instrument(
        "fanout.split.lag.time",
        "s",
        "How far a split is behind its newest record; of the splits that lag most",
        _of_worst(lag),
    ),
    Instrument(
        "fanout.split.lag.records",
        "{record}",
        "Records of a split behind its end; of the splits that lag most",
        _of_worst(lambda split, _: split.behind),
    ),
    Instrument(
        "fanout.split.record.age",
        "s",
        "Time since the last record of a split arrived; of the splits that lag most",
        _of_worst(age),
    ),
    Instrument(
        "fanout.split.resubscriptions",
        "{resubscription}",
        "How often a split was subscribed to again; of the splits that lag most",
        _of_worst(lambda split, _: split.resubscriptions),
    ),
    Instrument(
        "fanout.share.pending.age",
        "s",
        "Time since the longest-held record was locked",
        _of_lending(lambda lending: lending.oldest),
    ),
)


@final
@dataclass(frozen=True, slots=True)
class WriteReading:
    """The statistics of a writer or a sink at one moment."""

    statistics: WriterStatistics | SinkStatistics


def _field(name: str, *attributes: tuple[str, str]) -> Callable[[WriteReading], Values]:
    """Return what reads a field; a writer and a sink do not have all of the same."""
    return lambda reading: [(getattr(reading.statistics, name, None), attributes)]


def _transactions(reading: WriteReading) -> Values:
    counted: Any = reading.statistics.transactions
    if counted is None:
        return []
    return [
        (getattr(counted, step), (("fanout.transaction.step", step),))
        for step in ("begun", "committed", "aborted")
    ]


def _written(
    name: str, unit: str, description: str, read: Callable[[WriteReading], Values]
) -> Instrument:
    return Instrument(name, unit, description, read, WriteReading)


WRITE_COUNTERS: Final = (
    _written(
        "messaging.client.sent.messages",
        "{message}",
        "Records that the service has confirmed",
        _field("records", (OPERATION, "send")),
    ),
    _written("fanout.sent.bytes", "By", "Their bytes", _field("bytes")),
    _written(
        "fanout.writer.requests",
        "{request}",
        "Requests with records that a writer has sent",
        _field("requests"),
    ),
    _written(
        "fanout.writer.retries",
        "{record}",
        "Records that a writer has sent again, each time",
        _field("retries"),
    ),
    _written(
        "fanout.writer.throttled",
        "{response}",
        "Answers in which the service slows a writer down",
        _field("throttled"),
    ),
    _written(
        "fanout.sink.batches", "{batch}", "Batches that a sink has written", _field("batches")
    ),
    _written(
        "fanout.transactions",
        "{transaction}",
        "Transactions of a writer or a sink that were begun, committed and aborted",
        _transactions,
    ),
)

WRITE_LEVELS: Final = (
    _written(
        "fanout.writer.waiting",
        "By",
        "Bytes of records that the service has not confirmed",
        _field("waiting_bytes"),
    ),
)
