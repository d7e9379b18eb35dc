"""Recover a shard whose subscription failed: ask the service what happened, and decide.

Listings and descriptions show whether the stream, its consumer, the shard and the records at a
position still exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, final

from fanout.core.cancellation import prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.events import Batch
from fanout.core.policy import Fatal, Finish, Pace, Phase, Retry, Skip
from fanout.core.positions import Cursor, Horizon, Timestamp, reaches
from fanout.core.progress import ABSENCES
from fanout.core.sentence import Sentence
from fanout.errors import FanOutError, ServiceError, UnconfirmedEndError
from fanout.kinesis.aws.error_hints import code_of, hint_of
from fanout.kinesis.policy import KinesisRemedy, judge

if TYPE_CHECKING:
    from fanout.core.events import End, Split
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.kinesis.aws.api import KinesisClient
    from fanout.kinesis.registration import ConsumerRegistration
    from fanout.kinesis.shards import ShardCatalog

# Seconds. The clocks of the service's machines differ, and it sends its time in whole seconds.
_CLOCK_TOLERANCE: Final = 60.0

# In the service's sentence about a number that nothing of this stream ever had.
_FOREIGN: Final = "did not come from this stream"

_WAYS_OUT: Final = Sentence.of(
    "{on_data_loss='earliest'} continues with the oldest record that is left; or start anew, "
    "without the stored position"
)

log = logging.getLogger(__name__)


@final
class Recovery:
    """Check the stream, its consumer and its shards, and decide how a shard continues.

    Without a registration the shards are polled.
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
        self._checking = asyncio.Lock()
        self._checked_at = -1.0
        self._last_check: Verdict | None = None
        self._unlisted: Counter[str] = Counter()
        self._unconfirmed: dict[str, Position] = {}
        self._refused: dict[str, Cursor] = {}

    async def verdict(
        self, remedy: KinesisRemedy, error: Exception, split: Split, position: Position
    ) -> Verdict:
        """Find out what an error means for a shard; it raises nothing.

        The remedy is FIND_CAUSE, DATA_LOSS or CONFIRM_END. Cancellation: a consumer whose
        registration was sent stays; see ConsumerRegistration.
        """
        verdict = await self._check_stream()
        if verdict is not None:
            return verdict
        if split.id not in self._catalog.listed:
            return self._unlisted_shard(remedy, split, position)
        self._unlisted.pop(split.id, None)
        match remedy:
            case KinesisRemedy.DATA_LOSS:
                return await self._refused_position(error, split, position)
            case KinesisRemedy.CONFIRM_END:
                return self._confirm_end(error, split, position)
            case _:
                return Retry(hint="the stream, its consumer and the shard are all there", limit=10)

    def check_after_loss(self, event: Batch | End) -> None:
        """Check that the first records after a loss are newer than those that were read before."""
        # Others would be delivered twice: the position was refused although its records have not
        # expired.
        refused = self._refused.get(event.split.id)
        if refused is None or not isinstance(event, Batch) or not event.num_records:
            return
        first = int(event.records.column("sequenceNumber")[0].as_py())
        if first <= refused.sequence:
            raise ServiceError(
                f"{event.split} refused sequence number {refused.sequence}, but still has older "
                f"records, so nothing has expired: if the number is one of another shard, correct "
                f"the start, or start anew without it; otherwise open the stream again"
            )
        del self._refused[event.split.id]

    async def _check_stream(self) -> Verdict | None:
        """Check the stream and its consumer; return None if both exist."""
        # Shards that fail together share one check, and one registration: a check that began after
        # an error answers for that error too.
        now = asyncio.get_running_loop().time
        failed_at = now()
        async with self._checking:
            if self._checked_at < failed_at:
                began_at = now()
                self._last_check = await self._check_now()
                self._checked_at = began_at
            return self._last_check

    async def _check_now(self) -> Verdict | None:
        try:
            await self._catalog.refresh()
            return await self._check_consumer()
        except Exception as error:  # noqa: BLE001 - the error table judges it
            prefer_cancellation(error)
            log.warning(
                "the stream %s and its consumer cannot be checked: %s", self._stream, text_of(error)
            )
            return self._after_failed_check(error)

    async def _check_consumer(self) -> Verdict | None:
        registration = self._registration
        if registration is None or await registration.exists():
            return None
        if not registration.renewable:
            return Fatal(
                f"the consumer {registration.arn} is gone: it was deregistered; give the ARN of "
                f"another one, or a name to have it registered"
            )
        log.warning("the consumer %s is gone, so it is registered again", registration.arn)
        await registration.ensure()
        return Retry(Pace.FLOOR, hint="the consumer was gone, and was registered again")

    def _after_failed_check(self, error: Exception) -> Verdict:
        """Return how a shard continues after a check that failed."""
        if code_of(error) == "ResourceNotFoundException":
            return Fatal(f"the stream {self._stream!r} is gone: it was deleted")
        # A failed registration raises a ServiceError whose cause is the error of the call.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if isinstance(cause, FanOutError) and cause.retryable:
            return Retry()
        match judge(cause, Phase.DISCOVER, first=False):
            case Retry() as again:
                return again
            case Fatal():
                return Fatal(Sentence(error))
            case KinesisRemedy():
                return Retry(Pace.SLOW, hint=hint_of(cause))

    def _unlisted_shard(self, remedy: KinesisRemedy, split: Split, position: Position) -> Verdict:
        known, children = self._catalog.known.get(split.id), self._catalog.children(split.id)
        if known is not None and known.last is not None and reaches(position, Cursor(known.last)):
            return Finish(children)
        if remedy is KinesisRemedy.CONFIRM_END:
            # It has just been read, so it exists: listings are late, and may miss a shard.
            return Retry(hint="the shard is not listed", limit=3)
        self._unlisted[split.id] += 1
        if not children and self._unlisted[split.id] < ABSENCES:
            # A listing without a shard and without its children may be older than the shard.
            return Retry(hint="the shard is not listed")
        lost = f"the shard is past the stream's retention, with all that came {_after(position)}"
        if self._may_lose:
            return Finish(children, lost)
        return Fatal(Sentence(lost, "; ", _WAYS_OUT))

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
                    f"{shard.first}; it may be one of another shard, or of a stream that was "
                    f"deleted: correct the start, or start anew without the stored position"
                )
            case Cursor() if shard.last is not None and reaches(position, Cursor(shard.last)):
                return Finish(self._catalog.children(split.id))
            case Cursor(sequence) if _FOREIGN in str(error):
                return Fatal(
                    f"sequence number {sequence} is of another stream: correct the start, or start "
                    f"anew without the stored position"
                )
            case Cursor():
                return self._expired(split, position)

    async def _refused_time(self, error: Exception, position: Timestamp) -> Verdict:
        """Retry a time just ahead of the service's clock; the service refuses the future."""
        try:
            clock = (await self._client.describe_stream()).server_time
        except Exception as failure:  # noqa: BLE001 - the error table judges it
            prefer_cancellation(failure)
            return self._after_failed_check(failure)
        ahead = position.millis / 1000 - clock.timestamp()
        if ahead > _CLOCK_TOLERANCE:
            return Fatal(
                f"the start is {ahead:.0f} s ahead of the service's clock; start now with "
                f"'LATEST', or later"
            )
        if ahead > -_CLOCK_TOLERANCE:
            return Retry(hint="the start is ahead of the service's clock")
        return Fatal(hint_of(error))

    def _expired(self, split: Split, position: Cursor) -> Verdict:
        lost = f"what came {_after(position)} is past the stream's retention"
        if not self._may_lose:
            # The service has one answer to both.
            unless = ", unless the number is one of another shard; "
            return Fatal(Sentence(lost, unless, _WAYS_OUT))
        self._refused[split.id] = position
        return Skip(Horizon(), lost)

    def _confirm_end(self, error: Exception, split: Split, position: Position) -> Verdict:
        shard = self._catalog.listed[split.id]
        if shard.last is None:
            return Retry(hint="the shard is listed as open", limit=3)
        children = self._catalog.children(split.id)
        if reaches(position, Cursor(shard.last)):
            return Finish(children)
        if isinstance(error, UnconfirmedEndError) and error.exhausted:
            # Subscribe once more from this position: records may still follow it.
            if self._unconfirmed.pop(split.id, None) == position:
                return Finish(children)
            self._unconfirmed[split.id] = position
        return Retry(hint="the shard is listed as closed, but is not read to its end", limit=3)


def _after(position: Position) -> str:
    match position:
        case Horizon():
            return "after its beginning"
        case Timestamp(millis):
            return f"after {datetime.fromtimestamp(millis / 1000, UTC).isoformat()}"
        case Cursor(sequence):
            return f"after sequence number {sequence}"
