"""Counters of a running stream, as frozen snapshots, and the type of the resubscribe hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, final

from fanout.core.events import Split

if TYPE_CHECKING:
    from fanout.core.positions import Position

OnResubscribe: TypeAlias = Callable[[Split, Exception, float], None]

"""Called with the split, the cause, and the delay in seconds before the next subscription."""


@final
class SplitState(Enum):
    """What a split is doing."""

    WAITING = "waiting for its parents"
    SUBSCRIBING = "subscribing"
    LIVE = "live"
    CAUGHT_UP = "caught up with its stop"
    BACKING_OFF = "backing off"
    ENDED = "ended"
    FAILED = "failed"
    STOPPED = "stopped"


@final
@dataclass(frozen=True, slots=True)
class SplitStatistics:
    """One split's counters since the stream was opened.

    Args:
        state: What the split is doing.
        position: The position after the last record that was handed to the consumer.
        records: Records handed to the consumer.
        bytes: Their bytes in memory.
        subscriptions: Subscriptions that succeeded.
        resubscriptions: Recoverable ends of a subscription or failed attempts at one.
        last_cause: The error behind the latest of them.
        lag: Seconds behind the newest record, as of the latest event; None before the first, and
            while the split is neither live nor caught up with its stop. It grows by the second
            while an event waits for the consumer, as newer records may have come since.
        newest: When the last record that was handed over arrived at the service, in milliseconds
            since the Unix epoch; None before the first.
        gaps: How often records were lost.
        gap_seconds: How long the gaps are together, from the arrival of the last record before
            each to that of the first after it, as far as both are known.
        behind: Records behind the end of the split, as of the latest event; None where the
            service does not report it, and where `lag` is None.
        committed: The acknowledged position that the service has stored, for people to see; None
            where it has stored none in this run.
        watermark: The watermark after the last record that was handed over; see `Batch.watermark`.
        waiting: For how many seconds an event of the split has waited for the consumer; None where
            none waits. Nothing more of the split is read meanwhile.
        bad_records: Records that were left out because `decode` failed for them.
        late_records: Its part of `StreamTotals.late_records`; 0 where they are not counted.
    """

    state: SplitState
    position: Position
    records: int
    bytes: int
    subscriptions: int
    resubscriptions: int
    last_cause: Exception | None
    lag: float | None
    newest: int | None = None
    gaps: int = 0
    gap_seconds: float = 0.0
    behind: int | None = None
    committed: Position | None = None
    watermark: int | None = None
    waiting: float | None = None
    bad_records: int = 0
    late_records: int = 0


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """Where the records of a stream come from, in the words of OpenTelemetry's conventions.

    Args:
        system: The service: `kafka` or `aws_kinesis`; empty where it is another one.
        destination: The stream of Kinesis, or the topics with commas between them.
        group: The group, or the registered consumer, that reads; None for none.
    """

    system: str = ""
    destination: str = ""
    group: str | None = None


@final
@dataclass(frozen=True, slots=True)
class StreamTotals:
    """Counters of a stream that never go down, as they count splits too that exist no longer.

    Args:
        records: Records handed to the consumer; with landers, records that they landed.
        bytes: Their bytes in memory; with landers, those of the files.
        resubscriptions: Recoverable ends of subscriptions by their cause: the code of the service,
            or else the type of the error. After 50 causes others count as `_OTHER`.
        gaps: How often records were lost.
        gap_seconds: How long the gaps are together; see `SplitStatistics.gap_seconds`.
        bad_records: Records that were left out because `decode` failed for them.
        late_records: Records handed to the consumer whose event time was not newer than the
            stream's watermark before their batch; None where they are not counted: without
            `event_time`, with landers, and in a shuffle.
        throttled: Answers by which brokers of Kafka slow the reader down, for a quota. The
            refusals of other services end a subscription, and are among the resubscriptions.
    """

    records: int = 0
    bytes: int = 0
    resubscriptions: Mapping[str, int] = field(default_factory=dict)
    gaps: int = 0
    gap_seconds: float = 0.0
    bad_records: int = 0
    late_records: int | None = None
    throttled: int = 0


@final
@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The micro-batches with records of a query since it was started.

    Args:
        batches: Batches that the handler has finished.
        rows: Their records.
        bytes: The bytes of their segments.
        seconds: For each phase the seconds that it took in all of them; see `BatchReport`.
        set_aside: Batches that were set aside, as their handler had failed.
    """

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    set_aside: int = 0


@final
@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """Which acknowledged positions a service has stored, for people to see."""

    # Of each split, by id, the one that it stored last.
    positions: Mapping[str, Position] = field(default_factory=dict)
    succeeded: int = 0  # requests that stored all they named
    failed: int = 0  # requests that did not store the position of every split


@final
@dataclass(frozen=True, slots=True)
class LendingStatistics:
    """What became of the records that were acquired since the stream was opened.

    Args:
        acquired: Records that the service has locked for this stream.
        redelivered: Those of them that had been delivered before, to any consumer.
        repeated: Those of them that this stream had delivered itself, and did not deliver again.
        accepted: Records whose acknowledgement was confirmed.
        released: Records that were given back.
        rejected: Records that were refused for good.
        expired: Records whose time ran out before they were acknowledged, or whose acknowledgement
            was not confirmed.
        pending_records: Records that are held, and neither acknowledged nor given back.
        pending_bytes: Their bytes, and those of the records that came in the same answers.
        oldest: Seconds since the longest-held of them was acquired, at the most; None without any.
        unconfirmed: Records that are durable here, and whose acknowledgement is not confirmed.
        refused: Those of the expired ones that were acknowledged, and the service refused it.
        dead_letters: Those of the released and rejected ones that the service keeps as dead letters
            from now on, as they were delivered too often; a share group has none.
        last_deliveries: Records that a share group delivers for the last time: it drops those that
            are not accepted now.
    """

    acquired: int = 0
    redelivered: int = 0
    repeated: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0
    pending_records: int = 0
    pending_bytes: int = 0
    oldest: float | None = None
    unconfirmed: int = 0
    refused: int = 0
    dead_letters: int = 0
    last_deliveries: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LanderStatistics:
    """One connected lander: a Spark task, or another process, that reads some of the splits.

    Args:
        lander: Its number.
        host: The name of its machine.
        pid: The id of its process there.
        splits: How many splits it reads.
        segments: Segments that it has landed since it connected.
        bytes_per_second: How fast it reads its splits, in bytes of records, averaged over some ten
            seconds; 0.0 in the first ones.
        connected: Seconds since it connected.
    """

    lander: int
    host: str
    pid: int
    splits: int
    segments: int
    bytes_per_second: float
    connected: float


@final
@dataclass(frozen=True, slots=True)
class TableStatistics:
    """How far a table is that names the files of a landing.

    Args:
        table: The table, as messages name it.
        entries_behind: The entries after the newest one that it is known to have, with those among
            them that have no files; 0 where none has.
        failure: Why it could not be written to; empty while it can.
        stopped: Whether it is not tried again before the next run.
        failures: How often this run could not write to it.
        commits: How often this run has added files to it.
        commit_seconds: How long these commits took, together.
    """

    table: str
    entries_behind: int = 0
    failure: str = ""
    stopped: bool = False
    failures: int = 0
    commits: int = 0
    commit_seconds: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class MembershipStatistics:
    """What became of the splits that this process shares with others of its group.

    Args:
        group: The group.
        owned: Splits that this process has now.
        granted: How often it got a split.
        handed_over: How often it gave one up after it had stored how far it came.
        lost: How often another process could have one before that.
        valid: Seconds until other processes may have the splits, unless this one is heard of.
    """

    group: str
    owned: int = 0
    granted: int = 0
    handed_over: int = 0
    lost: int = 0
    valid: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class Statistics:
    """A whole stream's counters since it was opened.

    Args:
        splits: The counters of each known split by its id.
        bytes_in_flight: Bytes reserved for events that wait for the consumer.
        commits_succeeded: Requests that stored acknowledged positions.
        commits_failed: Requests that did not, or not of every split; they are tried again.
        lending: What became of acquired records; None where the source locks none.
        landers: The landers that are connected, by number; empty where the driver reads.
        lander_sessions: How often a lander has connected.
        origin: Where the records come from.
        totals: Counters that never go down.
        max_bytes_in_flight: The limit of `bytes_in_flight`, of all landers together; None where it
            is not known.
        watermark: The watermark of the stream; see `FanOut.watermark`.
        batches: The batches of a query; None for another stream.
        held: For how many seconds the oldest record has waited here for a batch of a query, or for
            an entry of a landing; None where none waits.
        membership: The splits that came from a group and went to it; None without a group.
        tables: The tables that name the files of a landing; empty without any.
    """

    splits: Mapping[str, SplitStatistics]
    bytes_in_flight: int
    commits_succeeded: int = 0
    commits_failed: int = 0
    lending: LendingStatistics | None = None
    landers: tuple[LanderStatistics, ...] = ()
    lander_sessions: int = 0
    origin: Origin = Origin()
    totals: StreamTotals = StreamTotals()
    max_bytes_in_flight: int | None = None
    watermark: int | None = None
    batches: BatchStatistics | None = None
    held: float | None = None
    membership: MembershipStatistics | None = None
    tables: tuple[TableStatistics, ...] = ()

    @property
    def records(self) -> int:
        """Records handed to the consumer."""
        return sum(split.records for split in self.splits.values())

    @property
    def resubscriptions(self) -> int:
        """Recoverable ends of subscriptions, all splits together."""
        return sum(split.resubscriptions for split in self.splits.values())

    @property
    def gaps(self) -> int:
        """How often records were lost, all splits together."""
        return self.totals.gaps

    @property
    def waiting(self) -> float:
        """For how many seconds the oldest event or record has waited to be taken; 0.0 for none."""
        known = [self.held, *(split.waiting for split in self.splits.values())]
        return max((seconds for seconds in known if seconds is not None), default=0.0)

    @property
    def lag(self) -> float | None:
        """Seconds that the slowest live split is behind, or that records wait here for a batch.

        None where no split has reported it, and no record waits.
        """
        known = [self.held, *(split.lag for split in self.splits.values())]
        return max((lag for lag in known if lag is not None), default=None)


@final
@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """What became of the transactions of a writer or a sink.

    Those that are neither committed nor aborted are open, or their end is not known.

    Args:
        begun: Transactions that were begun.
        committed: Transactions that were committed.
        aborted: Transactions that were aborted, here or by the service.
    """

    begun: int = 0
    committed: int = 0
    aborted: int = 0


@final
@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """A writer's counters since it was opened.

    Args:
        records: Records that the service has confirmed; those of aborted transactions included.
        bytes: Their bytes: as they were sent to Kafka, and with their partition keys for Kinesis.
        requests: Requests with records that were sent.
        retries: Records that were sent again, each time.
        throttled: Answers in which the service says that it slows the writer down.
        waiting_bytes: Bytes of the records that are not confirmed.
        transactions: The transactions; None for a writer without them.
        origin: Where the records go; no destination where each record names its topic.
    """

    records: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    throttled: int = 0
    waiting_bytes: int = 0
    transactions: TransactionStatistics | None = None
    origin: Origin = field(default_factory=Origin)


@final
@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """A sink's counters since it was made, of all queries that it writes for in this process.

    Args:
        batches: Batches that the sink has written, without those that an earlier run has written.
        records: The records of these batches.
        bytes: Their bytes: as they were sent to Kafka, and with their partition keys for Kinesis.
        transactions: The transactions; None for a sink without them.
        origin: Where the records go; no destination where each record names its topic.
    """

    batches: int = 0
    records: int = 0
    bytes: int = 0
    transactions: TransactionStatistics | None = None
    origin: Origin = field(default_factory=Origin)
