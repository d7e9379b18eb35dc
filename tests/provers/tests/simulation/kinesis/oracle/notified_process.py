"""A process to which a test reports the ends of its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fanout.errors import FanOutError, MalformedEventError, SplitFailedError
from fanout.kinesis import KinesisSource
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.job.process_run import ProcessRun
from tests.provers.simulation.kinesis.oracle.failure_check import check_kinesis_failure
from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents

if TYPE_CHECKING:
    from tests.provers.simulation.kinesis.oracle.subscribe_attempts import (
        SubscribeAttempt,
        SubscribeAttempts,
    )

__all__ = ("DAMAGE", "SHARD", "NotifiedProcess")

SHARD: Final = "shardId-000000000000"
SOURCE: Final = KinesisSource(stream="s", consumer="c")
DAMAGE: Final = (MalformedEventError, "")


class NotifiedProcess:
    """The subscribe calls of one process for one shard, as seconds go by."""

    def __init__(self, source: KinesisSource = SOURCE) -> None:
        self.now = 0.0
        self.source = source
        self.run = ProcessRun(1, HeldEvents(1), opened=True)

    @property
    def attempts(self) -> SubscribeAttempts:
        return self.run.attempts

    @property
    def wrongs(self) -> list[str]:
        return [wrong.partition(":")[0] for wrong in self.attempts.wrongs]

    def asks(self, number: int = 7) -> SubscribeAttempt:
        position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": str(number)}
        return self.attempts.begin(SHARD, position, self.now, 0.0)

    def reports(self, cause: Exception) -> None:
        self.attempts.report(SHARD, cause, self.now, self.source)

    def ends(
        self, ending: Exception | tuple[type[Exception], str], cause: Exception, number: int = 7
    ) -> None:
        """Subscribe, end by the service, and report a cause."""
        self.attempts.end(self.asks(number), ending, self.now)
        self.reports(cause)

    def fails(
        self, ending: Exception | tuple[type[Exception], str], cause: Exception, text: str
    ) -> str:
        """Subscribe, be ended by the service, and fail of it; return what the judge says."""
        self.attempts.end(self.asks(), ending, self.now)
        failure = SplitFailedError(f"{SHARD} cannot go on: {text}")
        failure.__cause__ = cause
        return self.judged(failure)

    def judged(self, failure: FanOutError, *, gone: bool = False) -> str:
        try:
            check_kinesis_failure(failure, self.run, self.source, self.now, gone=gone)
        except OracleError as error:
            return str(error).partition(":")[0]
        return ""
