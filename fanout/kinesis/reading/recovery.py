"""What became of a shard whose subscription failed in a way that only the service can explain."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, final

from fanout.core.cancellation import prefer_cancellation
from fanout.core.events import Batch
from fanout.core.policy import Fatal, Finish, Pace, Phase, Retry, Skip
from fanout.core.positions import Cursor, Horizon, Timestamp, reaches
from fanout.core.progress import ABSENCES
from fanout.errors import FanOutError, ServiceError, UnconfirmedEndError
from fanout.kinesis.aws.error_hints import code_of, hint_of
from fanout.kinesis.policy import Remedy, judge

if TYPE_CHECKING:
    from fanout.core.events import End, Split
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.kinesis.aws.api import KinesisClient
    from fanout.kinesis.registration import ConsumerRegistration
    from fanout.kinesis.shards import ShardCatalog

__all__ = (
    "DamagedFrames",
    "Recovery",
)


# The clocks of the service's machines differ, and it tells its time in whole seconds.
_CLOCK_TOLERANCE: Final = 60.0

_WAYS_OUT: Final = (
    "on_data_loss='earliest' goes on with the oldest record that is left; or start anew, without "
    "the stored position"
)

log = logging.getLogger(__name__)


@final
class Recovery:
    """Look at the stream, its consumer and its shards, and say how a shard goes on.

    Args:
        client: The calls.
        stream: The stream's name.
        catalog: Its shards.
        registration: The consumer; None where shards are polled.
        on_data_loss: What to do where records have expired before they were read.
    """

    def __init__(
        self,
        client: KinesisClient,
        stream: str,
        catalog: ShardCatalog,
        registration: ConsumerRegistration | None,
        *,
        on_data_loss: Literal["fail", "earliest"],
    ) -> None:
        self._client = client
        self._stream = stream
        self._catalog = catalog
        self._registration = registration
        self._may_lose = on_data_loss == "earliest"
        self._looking = asyncio.Lock()
        self._looked_at = -1.0
        self._seen: Verdict | None = None
        self._unlisted: Counter[str] = Counter()
        self._doubts: dict[str, Position] = {}
        self._refused: dict[str, Cursor] = {}

    async def verdict(
        self, remedy: Remedy, error: Exception, split: Split, position: Position
    ) -> Verdict:
        """Find out what an error means for a shard; it raises nothing.

        Args:
            remedy: What has to be found out: TRIAGE, DATA_LOSS or CONFIRM_END.
            error: What ended the subscription.
            split: The shard.
            position: Where its reader stands.

        Cancellation: a consumer whose registration was sent stays; see ConsumerRegistration.
        """
        verdict = await self._look()
        if verdict is not None:
            return verdict
        if split.id not in self._catalog.listed:
            return self._unlisted_shard(remedy, split, position)
        self._unlisted.pop(split.id, None)
        match remedy:
            case Remedy.DATA_LOSS:
                return await self._refused_position(error, split, position)
            case Remedy.CONFIRM_END:
                return self._half_an_end(error, split, position)
            case _:
                return Retry(hint="the stream, its consumer and the shard are all there", limit=10)

    def check(self, event: Batch | End) -> None:
        """Look at what comes behind lost records: it has to be newer than what was read before.

        Raises:
            ServiceError: If the position was refused although its records have not expired; they
                would be handed on twice.
        """
        refused = self._refused.get(event.split.id)
        if refused is None or not isinstance(event, Batch) or not event.num_records:
            return
        first = int(event.records.column("sequenceNumber")[0].as_py())
        if first <= refused.sequence:
            raise ServiceError(
                f"{event.split} refused sequence number {refused.sequence}, but still has older "
                f"records, so nothing has expired; open the stream again, and report it if it is "
                f"refused again"
            )
        del self._refused[event.split.id]

    async def _look(self) -> Verdict | None:
        """Say what became of the stream and its consumer; None where both are there.

        Shards that fail together share a look, and one registration: a look that has begun after
        an error tells about that error, whoever has asked for it.
        """
        now = asyncio.get_running_loop().time
        failed_at = now()
        async with self._looking:
            if self._looked_at < failed_at:
                began_at = now()
                self._seen = await self._look_now()
                self._looked_at = began_at
            return self._seen

    async def _look_now(self) -> Verdict | None:
        try:
            await self._catalog.refresh()
            return await self._look_at_consumer()
        except Exception as error:  # noqa: BLE001 - the table tells what it means
            prefer_cancellation(error)
            log.warning("what became of the shards of %s is not known: %s", self._stream, error)
            return self._blind(error)

    async def _look_at_consumer(self) -> Verdict | None:
        registration = self._registration
        if registration is None or await registration.exists():
            return None
        if not registration.renewable:
            return Fatal(
                f"the consumer {registration.arn} is gone: somebody has deregistered it; give the "
                f"ARN of another one, or a name to have it registered"
            )
        log.warning("the consumer %s is gone, and is registered again", registration.arn)
        await registration.ensure()
        return Retry(Pace.FLOOR, hint="the consumer was gone, and is registered again")

    def _blind(self, error: Exception) -> Verdict:
        """Say how to go on where a look has failed."""
        if code_of(error) == "ResourceNotFoundException":
            return Fatal(f"the stream {self._stream!r} is gone: somebody has deleted it")
        # A registration that fails tells in a sentence what a call has raised.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if isinstance(cause, FanOutError) and cause.retryable:
            return Retry()
        match judge(cause, Phase.DISCOVER, first=False):
            case Retry() as again:
                return again
            case Fatal():
                return Fatal(str(error))
            case Remedy():
                return Retry(Pace.SLOW, hint=hint_of(cause))

    def _unlisted_shard(self, remedy: Remedy, split: Split, position: Position) -> Verdict:
        known, children = self._catalog.known.get(split.id), self._catalog.children(split.id)
        if known is not None and known.last is not None and reaches(position, Cursor(known.last)):
            return Finish(children)
        if remedy is Remedy.CONFIRM_END:
            # It has just been read, so it is there: listings are late, and may miss a shard.
            return Retry(hint="the shard is not listed", limit=3)
        self._unlisted[split.id] += 1
        if not children and self._unlisted[split.id] < ABSENCES:
            # A listing that names neither a shard nor what replaces it may be older than the shard.
            return Retry(hint="the shard is not listed")
        lost = f"the shard is past the stream's retention, with all that came {_after(position)}"
        if self._may_lose:
            return Finish(children, lost)
        return Fatal(f"{lost}; {_WAYS_OUT}")

    async def _refused_position(
        self, error: Exception, split: Split, position: Position
    ) -> Verdict:
        shard = self._catalog.listed[split.id]
        match position:
            case Horizon():
                return Fatal(hint_of(error))
            case Timestamp():
                return await self._refused_time(error, position)
            case Cursor(sequence) if sequence < shard.first:
                return Fatal(
                    f"sequence number {sequence} is not one of this shard's, which begins at "
                    f"{shard.first}; it may be that of a stream that was deleted: start anew, "
                    f"without the stored position"
                )
            case Cursor() if shard.last is not None and reaches(position, Cursor(shard.last)):
                return Finish(self._catalog.children(split.id))
            case Cursor():
                return self._expired(split, position)

    async def _refused_time(self, error: Exception, position: Timestamp) -> Verdict:
        """Wait for a time that is just ahead of the service's clock; it refuses the future."""
        try:
            clock = (await self._client.describe_stream()).server_time
        except Exception as failure:  # noqa: BLE001 - the table tells what it means
            prefer_cancellation(failure)
            return self._blind(failure)
        ahead = position.millis / 1000 - clock.timestamp()
        if ahead > _CLOCK_TOLERANCE:
            return Fatal(
                f"the start lies {ahead:.0f} s ahead of the service's clock; start now, with "
                f"'LATEST', or when that time has come"
            )
        if ahead > -_CLOCK_TOLERANCE:
            return Retry(hint="the start lies ahead of the service's clock")
        return Fatal(hint_of(error))

    def _expired(self, split: Split, position: Cursor) -> Verdict:
        lost = f"what came {_after(position)} is past the stream's retention"
        if not self._may_lose:
            return Fatal(f"{lost}; {_WAYS_OUT}")
        self._refused[split.id] = position
        return Skip(Horizon(), lost)

    def _half_an_end(self, error: Exception, split: Split, position: Position) -> Verdict:
        shard = self._catalog.listed[split.id]
        if shard.last is None:
            return Retry(hint="the shard is listed as open", limit=3)
        children = self._catalog.children(split.id)
        if reaches(position, Cursor(shard.last)):
            return Finish(children)
        if isinstance(error, UnconfirmedEndError) and error.exhausted:
            # Once more from where the reader stands: records may still come from there.
            if self._doubts.pop(split.id, None) == position:
                return Finish(children)
            self._doubts[split.id] = position
        return Retry(hint="the shard is listed as closed, but is not read to its end", limit=3)


def _after(position: Position) -> str:
    match position:
        case Horizon():
            return "after its beginning"
        case Timestamp(millis):
            return f"after {datetime.fromtimestamp(millis / 1000, UTC).isoformat()}"
        case Cursor(sequence):
            return f"after sequence number {sequence}"


# A frame that was damaged on the wire comes whole when it is sent again; one that is damaged in
# each of three answers is damaged at the service.
_TRIES: Final = 3


@final
class DamagedFrames:
    """Count the damaged frames of each shard.

    Args:
        on_bad_frame: Whether a frame that is damaged in three answers ends the stream, or is
            dropped.
    """

    def __init__(self, on_bad_frame: Literal["fail", "gap"]) -> None:
        self._droppable = on_bad_frame == "gap"
        self._damaged: dict[str, tuple[Position, int]] = {}

    def droppable(self, shard_id: str, position: Position) -> int:
        """Return how many frames in a row, from its first on, a new subscription may drop.

        Each of them has been damaged in two answers before: after the first frame has used up its
        tries it is dropped each time, and the one behind it begins to use up its own.
        """
        return self._count(shard_id, position) // (_TRIES - 1) if self._droppable else 0

    def found(self, shard_id: str, position: Position) -> Retry:
        """Count a subscription that ended at a damaged frame; return what to do about it."""
        self._damaged[shard_id] = position, self._count(shard_id, position) + 1
        return Retry() if self._droppable else Retry(limit=_TRIES)

    def _count(self, shard_id: str, position: Position) -> int:
        at, count = self._damaged.get(shard_id, (position, 0))
        return count if at == position else 0
