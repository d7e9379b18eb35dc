"""Know every split of a source, and which of them may be read: children after all parents."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, final

from fanout.core.backoff import Retries
from fanout.core.cancellation import prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.events import startable
from fanout.core.policy import Fatal, Phase, Retry
from fanout.core.positions import Cursor, Horizon
from fanout.core.sentence import in_brackets
from fanout.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.events import End, Split
    from fanout.core.lifecycle_log import LifecycleLog
    from fanout.core.policy import Verdict
    from fanout.core.progress import Progress
    from fanout.core.source import Connection

log = logging.getLogger(__name__)


@final
class Lineage:
    """Discover splits, add them to the progress, and say which of them may be read."""

    def __init__(
        self,
        connection: Connection,
        progress: Progress,
        *,
        jitter: FullJitter,
        listed: Sequence[Split],
        lifecycle: LifecycleLog,
    ) -> None:
        self._connection = connection
        self._progress = progress
        self._jitter = jitter
        self._lifecycle = lifecycle
        self._finished = {state.split.id for state in progress if state.ended}
        self._listed: set[str] = set()
        # An earlier run has read from these splits: their parents were out of the way.
        self._begun = {s.split.id for s in progress if isinstance(s.delivered, Cursor)}
        self._relist = asyncio.Event()
        self._learn(listed)
        self._progress.forget_expired(self._listed)

    def startable(self) -> Iterator[Split]:
        """Yield the splits that may be read: all of their parents are out of the way."""
        splits = {state.split.id: state.split for state in self._progress}
        # A split that stays out of the listings has expired, and so have its parents: no listing
        # will have it any more, and its children wait for it. Subscribing shows what became of it.
        absent = {state.split.id for state in self._progress if state.absent}
        return startable(splits, self._finished, self._listed | self._begun | absent)

    def is_finished(self, split_id: str) -> bool:
        """Return whether a split was read to its end."""
        return split_id in self._finished

    def finish(self, end: End) -> None:
        """Take in that a split was read to its end; its children become known."""
        self._finished.add(end.split.id)
        self._lifecycle.ended(end)
        self._know(end.children)
        self._relist.set()

    def _learn(self, listed: Sequence[Split]) -> list[Split]:
        """Take in what the service has listed; return the splits that are new."""
        self._listed = {split.id for split in listed}
        return self._know(listed)

    def _know(self, splits: Iterable[Split]) -> list[Split]:
        new = [
            split
            for split in splits
            if split.id not in self._progress and split.id not in self._finished
        ]
        for split in new:
            # The start of the stream does not apply: all records of a split that appears while
            # the stream runs are new.
            self._progress.add(split, Horizon())
        return new

    async def discover(self, changed: Callable[[], None]) -> None:
        """List the splits again and again, at once when one has ended; call `changed` after each.

        A refusal for good is a ServiceError.
        """
        # A listing that fails stops no subscription, so max_retries does not count it.
        pacing = replace(self._connection.pacing, max_retries=None)
        retries = Retries(pacing, self._jitter)
        interval = None if self._connection.capabilities.bounded else pacing.discovery_interval
        delay = interval
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._relist.wait()
            hurried = self._relist.is_set()
            self._relist.clear()
            try:
                splits = await self._connection.splits()
            except Exception as error:  # noqa: BLE001 - the connection judges it
                delay = await delay_after_failure(self._connection, error, retries)
                continue
            retries.progressed(moved=True)
            delay = interval
            self._lifecycle.found(self._learn(splits))
            # Listings in quick succession, as splits end, may all be as old as one of them.
            if not hurried:
                self._progress.forget_expired(self._listed)
            changed()


async def delay_after_failure(
    connection: Connection, error: Exception, retries: Retries, *, longest: float = math.inf
) -> float:
    """Return the seconds until the splits are listed again, after a listing that failed.

    `longest` are the most seconds that there are left; with none a failure is final. A final
    failure, or a refusal for good, is a ServiceError.
    """
    prefer_cancellation(error)
    retries.refused()
    verdict = await connection.verdict(error, Phase.DISCOVER)
    if not isinstance(verdict, Retry) or retries.failed(error, verdict) or longest <= 0:
        raise listing_failure(error, verdict) from error
    delay = min(retries.wait(verdict.pace), longest)
    log.warning("cannot list the splits, again in %.1f s: %s", delay, text_of(error))
    return delay


def listing_failure(error: Exception, verdict: Verdict) -> ServiceError:
    """Build the error of a stream whose splits cannot be listed, with its cause."""
    hint = verdict.hint if isinstance(verdict, Retry | Fatal) else ""
    failure = ServiceError("the splits cannot be listed: ", error, in_brackets(hint))
    failure.__cause__ = error
    return failure
