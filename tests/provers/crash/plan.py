"""Draw the strikes of each round of a campaign from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count, cycle
from random import Random
from typing import TYPE_CHECKING, Final, final

from fanout.errors import FanOutError, OptionError
from tests.provers.crash.moments import CrashMoment, Pipeline, Sink, Strike, StrikeKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ("MAX_ROUNDS", "CampaignFailedError", "CrashOptions", "Round", "draw_crash_plan")

MAX_ROUNDS: Final = 10_000
_NODES: Final = (1, 3, 4, 5)

# The steps of a batch that every sink has.
_OF_QUERIES = (
    CrashMoment.BEFORE_SEGMENT,
    CrashMoment.AFTER_SEGMENT,
    CrashMoment.BEFORE_ENTRY,
    CrashMoment.AFTER_ENTRY,
    CrashMoment.BEFORE_PRUNE,
    CrashMoment.AFTER_PRUNE,
    CrashMoment.BEFORE_HANDLER,
    CrashMoment.AFTER_HANDLER,
    CrashMoment.BEFORE_COMMIT,
    CrashMoment.AFTER_COMMIT,
    CrashMoment.RANDOM,
)
_OF_TASKS = (CrashMoment.BEFORE_WRITE, CrashMoment.AFTER_WRITE)
_OF_TABLES = (
    CrashMoment.BEFORE_MERGE,
    CrashMoment.BEFORE_MERGE_COMMIT,
    CrashMoment.AFTER_MERGE_COMMIT,
    CrashMoment.AFTER_MERGE,
    *_OF_TASKS,
    CrashMoment.BEFORE_TABLE_COMMIT,
    CrashMoment.AFTER_TABLE_COMMIT,
)
# The steps of each sink, at which the driver dies.
_OF_SINKS: Final[Mapping[Sink, Sequence[CrashMoment]]] = {
    Sink.KAFKA: (
        CrashMoment.BEFORE_BEGIN,
        CrashMoment.AFTER_BEGIN,
        CrashMoment.BEFORE_WRITE,
        CrashMoment.BEFORE_FLUSH,
        CrashMoment.AFTER_FLUSH,
        CrashMoment.BEFORE_MARKER,
        CrashMoment.AFTER_MARKER,
        CrashMoment.BEFORE_TOKEN,
        CrashMoment.AFTER_TOKEN,
        CrashMoment.BEFORE_END,
        CrashMoment.AFTER_END,
        CrashMoment.BEFORE_OUTCOME,
        CrashMoment.BEFORE_TOKEN_PRUNE,
        CrashMoment.AFTER_TOKEN_PRUNE,
        CrashMoment.AFTER_OUTCOME,
    ),
    Sink.PARQUET: (
        *_OF_TASKS,
        CrashMoment.BEFORE_FILE,
        CrashMoment.AFTER_FILE,
        CrashMoment.BEFORE_MARKER,
        CrashMoment.AFTER_MARKER,
    ),
    Sink.POSTGRES: (*_OF_TABLES, CrashMoment.AFTER_STAGING, CrashMoment.IN_TAKE_OVER),
    Sink.JDBC: (*_OF_TABLES, CrashMoment.AFTER_STAGING, CrashMoment.IN_TAKE_OVER),
    Sink.DELTA: _OF_TABLES,
    Sink.ICEBERG: _OF_TABLES,
    Sink.KINESIS: (
        CrashMoment.BEFORE_WRITE,
        CrashMoment.BEFORE_FLUSH,
        CrashMoment.BEFORE_PUT,
        CrashMoment.AFTER_PUT,
        CrashMoment.AFTER_FLUSH,
    ),
}
# Each driver dies at the first, and the next one, as it takes over, at the second.
_TWICE: Final[Mapping[Sink, Sequence[tuple[CrashMoment, CrashMoment]]]] = {
    Sink.KAFKA: (
        (CrashMoment.AFTER_TOKEN, CrashMoment.BEFORE_RECOVERY),
        (CrashMoment.AFTER_TOKEN, CrashMoment.AFTER_END),
        (CrashMoment.BEFORE_FLUSH, CrashMoment.AFTER_RECOVERY),
    ),
    Sink.PARQUET: ((CrashMoment.AFTER_FILE, CrashMoment.BEFORE_MARKER),),
    Sink.POSTGRES: ((CrashMoment.AFTER_STAGING, CrashMoment.AFTER_TABLE_COMMIT),),
    Sink.JDBC: ((CrashMoment.AFTER_STAGING, CrashMoment.AFTER_TABLE_COMMIT),),
    Sink.DELTA: ((CrashMoment.AFTER_MERGE_COMMIT, CrashMoment.AFTER_TABLE_COMMIT),),
    Sink.ICEBERG: ((CrashMoment.AFTER_MERGE_COMMIT, CrashMoment.AFTER_TABLE_COMMIT),),
    Sink.KINESIS: ((CrashMoment.AFTER_PUT, CrashMoment.AFTER_PUT),),
}
_OF_WORKERS: Final[Mapping[Sink, Sequence[CrashMoment]]] = {
    Sink.KAFKA: (CrashMoment.BEFORE_WRITE, CrashMoment.BEFORE_FLUSH, CrashMoment.AFTER_FLUSH),
    Sink.PARQUET: _OF_TASKS,
    Sink.POSTGRES: _OF_TASKS,
    Sink.JDBC: _OF_TASKS,
    Sink.DELTA: _OF_TASKS,
    Sink.ICEBERG: _OF_TASKS,
    Sink.KINESIS: (CrashMoment.BEFORE_WRITE, CrashMoment.AFTER_PUT, CrashMoment.AFTER_FLUSH),
}
_OF_BROKERS = (
    (CrashMoment.RANDOM, StrikeKind.KILL_BROKER),
    (CrashMoment.BEFORE_FLUSH, StrikeKind.KILL_BROKER),
    (CrashMoment.BEFORE_END, StrikeKind.KILL_BROKER),
    (CrashMoment.AFTER_END, StrikeKind.KILL_BROKER),
    (CrashMoment.RANDOM, StrikeKind.PAUSE_BROKER),
    (CrashMoment.BEFORE_MARKER, StrikeKind.PAUSE_BROKER),
)
# With several nodes.
_OF_LEADERS = (
    (CrashMoment.RANDOM, StrikeKind.MOVE_LEADERS),
    (CrashMoment.BEFORE_END, StrikeKind.MOVE_LEADERS),
    (CrashMoment.BEFORE_FLUSH, StrikeKind.MOVE_LEADERS),
)
_OF_KINESIS = (
    (CrashMoment.RANDOM, StrikeKind.KILL_KINESIS),
    (CrashMoment.RANDOM, StrikeKind.CUT_KINESIS),
)
# In the process of a lander.
_OF_LANDERS = (
    (CrashMoment.BEFORE_LANDING, StrikeKind.KILL_LANDER),
    (CrashMoment.AFTER_LANDING, StrikeKind.KILL_LANDER),
    (CrashMoment.AFTER_TELLING, StrikeKind.KILL_LANDER),
    (CrashMoment.BEFORE_LANDING, StrikeKind.KILL_EXECUTOR),
    (CrashMoment.AFTER_LANDING, StrikeKind.KILL_EXECUTOR),
    (CrashMoment.AFTER_TELLING, StrikeKind.KILL_EXECUTOR),
    (CrashMoment.AFTER_LANDING, StrikeKind.KILL_SPARK_WORKER),
    (CrashMoment.BEFORE_LANDING, StrikeKind.KILL_DRIVER),
    (CrashMoment.AFTER_LANDING, StrikeKind.KILL_DRIVER),
    (CrashMoment.AFTER_TELLING, StrikeKind.KILL_DRIVER),
)
# A lander publishes the segments of a pipeline that it reads.
_OF_READING_DRIVERS = {CrashMoment.BEFORE_SEGMENT, CrashMoment.AFTER_SEGMENT}


@final
class CampaignFailedError(FanOutError):
    """The campaign could not be brought to its end."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CrashOptions:
    """Say what the campaign does.

    Args:
        rounds: How often something strikes.
        seed: What moments, records and pauses are drawn from.
        pipelines: What runs.
        sink: What they write to; one pipeline reads Kinesis where that is not Kafka.
        at_least_once: Those that write at least once instead of exactly once, so that a campaign
            has something to find: records that come twice.
        planted: The name of one of CRASH_BUGS that is planted into the driver, for the same; empty
            for none.
        nodes: How many nodes Kafka has; with several, one of them is struck at a time, and leaders
            move.

    Raises:
        OptionError: If there is no round, too many, no pipeline, one that the sink has not, or
            there are nodes of which none may fail.
    """

    rounds: int = 30
    seed: int = 1
    pipelines: tuple[Pipeline, ...] = tuple(Pipeline)
    at_least_once: tuple[Pipeline, ...] = ()
    sink: Sink = Sink.KAFKA
    planted: str = ""
    nodes: int = 1

    @property
    def by_landers(self) -> bool:
        """Whether landers read one of the pipelines, which takes a cluster."""
        return any(pipeline.by_landers for pipeline in self.pipelines)

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise OptionError(f"rounds={self.rounds} must be between 1 and {MAX_ROUNDS:,}")
        if not self.pipelines:
            raise OptionError("pipelines must name one at least")
        if self.sink is not Sink.KAFKA and self.pipelines != (Pipeline.KINESIS,):
            raise OptionError(f"the pipeline into {self.sink} is {Pipeline.KINESIS} alone")
        if self.nodes not in _NODES:
            raise OptionError(f"nodes={self.nodes} must be 1, 3, 4 or 5, so that one may fail")
        if self.nodes > 1 and self.sink is not Sink.KAFKA:
            raise OptionError(f"the campaign into {self.sink} has no nodes of Kafka")


@final
@dataclass(frozen=True, slots=True)
class Round:
    """The strikes until the job has caught up again.

    Args:
        strikes: One, or two: then the driver that takes over is struck as well.
        delay: Seconds to wait before it.
        outage: Seconds for which a service is away.
        node: The node of Kafka that is struck, where one is.
    """

    strikes: tuple[Strike, ...]
    delay: float
    outage: float
    node: int = 1


def draw_crash_plan(options: CrashOptions) -> Sequence[Round]:
    """Draw the rounds; the same options draw the same.

    Every strike of the catalogue comes once, in an order that the seed decides, before any comes
    again; then it strikes the other pipeline.
    """
    random = Random(options.seed)
    strikes = _strikes(options, random)
    rounds = [
        Round(next(strikes), random.uniform(0.1, 1.0), random.uniform(0.5, 3.0))
        for _ in range(options.rounds)
    ]
    if options.nodes == 1:
        return rounds
    # A cluster misses a node after three seconds.
    return [
        replace(each, outage=each.outage * 4, node=random.randint(1, options.nodes))
        for each in rounds
    ]


def _strikes(options: CrashOptions, random: Random) -> Iterator[tuple[Strike, ...]]:
    pipelines, sink = options.pipelines, options.sink
    by_landers = [pipeline for pipeline in pipelines if pipeline.by_landers]
    by_driver = [pipeline for pipeline in pipelines if not pipeline.by_landers]
    catalogue: list[tuple[tuple[CrashMoment, StrikeKind], ...]] = [
        ((moment, StrikeKind.KILL_DRIVER),)
        for moment in (*_OF_QUERIES, *_OF_SINKS[sink])
        if by_driver or moment not in _OF_READING_DRIVERS
    ]
    catalogue += [tuple((each, StrikeKind.KILL_DRIVER) for each in both) for both in _TWICE[sink]]
    catalogue += [((moment, StrikeKind.KILL_WORKER),) for moment in _OF_WORKERS[sink]]
    if sink is Sink.KAFKA:
        catalogue += [(other,) for other in _OF_BROKERS]
    if options.nodes > 1:
        catalogue += [(other,) for other in _OF_LEADERS]
    if any(pipeline.of_kinesis for pipeline in pipelines):
        catalogue += [(other,) for other in _OF_KINESIS]
    random.shuffle(catalogue)
    if by_landers:
        # A campaign of two rounds strikes landers too.
        of_landers = random.sample(_OF_LANDERS, len(_OF_LANDERS))
        catalogue[1:1] = [(of_landers.pop(),)]
        catalogue += [(other,) for other in of_landers]
    for deal in count():
        turns, driver_turns, lander_turns = (
            _turns(each, deal) for each in (pipelines, by_driver, by_landers)
        )
        for moments in catalogue:
            first = moments[0]
            if first in _OF_LANDERS:
                pipeline = next(lander_turns)
            elif first[0] in _OF_READING_DRIVERS:
                pipeline = next(driver_turns)
            else:
                pipeline = next(turns)
            yield tuple(Strike(moment, kind, pipeline) for moment, kind in moments)


def _turns(pipelines: Sequence[Pipeline], deal: int) -> Iterator[Pipeline]:
    """Take turns, and begin in each deal with another pipeline."""
    first = deal % len(pipelines) if pipelines else 0
    return cycle([*pipelines[first:], *pipelines[:first]])
