"""Log the life of a stream, one structured line an event, under the logger `fanout.lifecycle`.

The fields of a line are attributes of its `LogRecord`, as `extra=` makes them, and have the names
of OpenTelemetry's conventions where these have one. No line has data, keys or secrets.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar, final

from fanout.core.error_text import name_or_other, text_of
from fanout.core.limits import WINDOW, LogLimit

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Mapping, Sequence

    from fanout.core.events import Batch, End, Gap, Split
    from fanout.core.positions import Position
    from fanout.core.progress import Progress, SplitProgress
    from fanout.core.source import Capabilities
    from fanout.errors import FanOutError, RetryLaterError

    _T = TypeVar("_T")

log = logging.getLogger("fanout.lifecycle")

# A stream may have thousands of splits, and a line names a few of them.
_NAMED: Final = 5
# Seconds of failures without progress after which a person should look.
_LONG_FAILURE: Final = 60.0


@final
class LogEvent(StrEnum):
    """The names of events; `docs/observability.md` lists them for users."""

    STREAM_STARTED = "fanout.stream.started"
    STREAM_STOPPED = "fanout.stream.stopped"
    SPLITS_FOUND = "fanout.splits.found"
    SPLIT_ENDED = "fanout.split.ended"
    SPLIT_GRANTED = "fanout.split.granted"
    SPLIT_HANDED_OVER = "fanout.split.handed_over"
    SPLIT_LOST = "fanout.split.lost"
    SUBSCRIPTION_OPENED = "fanout.subscription.opened"
    SUBSCRIPTION_RENEWED = "fanout.subscription.renewed"
    SUBSCRIPTION_RETRIED = "fanout.subscription.retried"
    SUBSCRIPTION_BLOCKED = "fanout.subscription.blocked"
    RECORDS_LOST = "fanout.records.lost"
    GAP_MEASURED = "fanout.gap.measured"
    RECORDS_BAD = "fanout.records.bad"
    DECODE_DELAYED = "fanout.decode.delayed"
    LANDER_CONNECTED = "fanout.lander.connected"
    LANDER_GONE = "fanout.lander.gone"
    LANDER_REFUSED = "fanout.lander.refused"
    LANDER_FAILED = "fanout.lander.failed"
    CHECKPOINT_AWAITED = "fanout.checkpoint.awaited"
    CHECKPOINT_CLAIMED = "fanout.checkpoint.claimed"
    ENTRY_WRITTEN = "fanout.entry.written"
    QUERY_STARTED = "fanout.query.started"
    BATCH_FINISHED = "fanout.batch.finished"
    BATCH_SET_ASIDE = "fanout.batch.set_aside"
    QUERY_STOPPED = "fanout.query.stopped"


@final
@dataclass(frozen=True, slots=True)
class LanderName:
    """Which lander a line is about."""

    lander: int
    host: str  # the name of its machine
    pid: int  # the id of its process there

    def __str__(self) -> str:
        return f"lander {self.lander} (process {self.pid} on {self.host})"


# Lines of subscriptions that fail for long have a limit of their own.
_LASTING: Final = "lasting"
# The level of the line in place of those that were left out, and what it counts.
_SUMMARIES: Final[dict[str, tuple[int, str]]] = {
    _LASTING: (logging.WARNING, "subscriptions that make no progress"),
    LogEvent.SPLIT_ENDED: (logging.INFO, "splits that were read to their end"),
    LogEvent.SUBSCRIPTION_RETRIED: (logging.INFO, "subscriptions that are opened again"),
    LogEvent.SUBSCRIPTION_BLOCKED: (logging.ERROR, "subscriptions that wait for a person"),
    LogEvent.RECORDS_LOST: (logging.ERROR, "losses of records"),
    LogEvent.GAP_MEASURED: (logging.ERROR, "gaps that are measured"),
    LogEvent.RECORDS_BAD: (logging.WARNING, "batches with records that cannot be decoded"),
    LogEvent.DECODE_DELAYED: (logging.WARNING, "batches that wait until they can be decoded"),
}


def write(
    level: int, event: LogEvent, message: str, *args: object, fields: Mapping[str, object]
) -> None:
    """Log one event of a stream, a landing or a query; the message has a place for each arg."""
    log.log(level, message, *args, extra={"event.name": event.value, **fields})


def totals(
    seconds: float, records: int, nbytes: int, batches: int, *, error: str | None
) -> Mapping[str, object]:
    """Return the fields of the line at the end of a stream or query; `error` is a type."""
    counts = {
        "fanout.duration": round(seconds, 3),
        "fanout.records": records,
        "fanout.bytes": nbytes,
        "fanout.batches": batches,
    }
    return counts if error is None else {**counts, "error.type": error}


@final
class LifecycleLog:
    """Log the life of one stream, in the terms of its service."""

    def __init__(self, source: str, capabilities: Capabilities) -> None:
        self._source = source
        self._terms = capabilities.terms
        origin = capabilities.origin
        self._fields = {
            "messaging.system": origin.system,
            "messaging.destination.name": origin.destination,
        }
        self._limit = LogLimit(self._summarize)
        self._started = 0.0

    # The stream.

    def started(self, progress: Progress, *, stored: bool) -> None:
        """Log where reading begins; `stored` positions are those of an earlier run."""
        self._started = asyncio.get_running_loop().time()
        states = [state for state in progress if not state.ended]
        ended = sum(1 for _ in progress) - len(states)
        self._write(
            logging.INFO,
            LogEvent.STREAM_STARTED,
            "%s %s with %s%s%s",
            self._source,
            "resumes from stored positions" if stored else "starts",
            self._count(states),
            _few(states, self._place),
            f"; {ended} more had been read to the end" if ended else "",
            fields={"fanout.stream.resumed": stored, "fanout.splits": len(states)},
        )

    def shares(self, group: str) -> None:
        """Log that reading begins as one process of a group, which grants splits later."""
        self._started = asyncio.get_running_loop().time()
        self._write(
            logging.INFO,
            LogEvent.STREAM_STARTED,
            "%s is read as a member of the group %s",
            self._source,
            group,
            fields={"fanout.stream.resumed": True, "fanout.splits": 0},
        )

    def found(self, splits: Collection[Split]) -> None:
        """Log splits that have appeared while the stream runs."""
        if splits:
            self._write(
                logging.INFO,
                LogEvent.SPLITS_FOUND,
                "found %s%s",
                self._count(splits, "new "),
                _few(splits, _with_parents),
                fields={"fanout.splits": len(splits)},
            )

    def stopped(self, progress: Progress, failure: FanOutError | None) -> None:
        """Log the totals of the stream."""
        self._limit.close()
        seconds = asyncio.get_running_loop().time() - self._started
        name = None if failure is None else type(failure).__name__
        self._write(
            logging.INFO,
            LogEvent.STREAM_STOPPED,
            "%s %s after %.1f s: %d records, %d bytes, %d batches",
            self._source,
            "stopped" if name is None else f"failed with {name}",
            seconds,
            progress.records,
            progress.bytes,
            progress.batches,
            fields=totals(seconds, progress.records, progress.bytes, progress.batches, error=name),
        )

    # Its splits.

    def subscribed(self, split: Split, position: Position) -> None:
        """Log a subscription that was opened."""
        self._write_of_split(
            logging.DEBUG,
            LogEvent.SUBSCRIPTION_OPENED,
            split,
            "subscribed to %s %s",
            split,
            self._terms.position(position),
            fields={"fanout.position": self._terms.position(position)},
        )

    def renews(self, split: Split, position: Position) -> None:
        """Log a subscription that is over without an error, as all are in time."""
        self._write_of_split(
            logging.DEBUG,
            LogEvent.SUBSCRIPTION_RENEWED,
            split,
            "renewing the subscription to %s %s",
            split,
            self._terms.position(position),
            fields={"fanout.position": self._terms.position(position)},
        )

    def retries(
        self,
        split: Split,
        position: Position,
        cause: Exception,
        delay: float,
        *,
        failing_for: float,
    ) -> None:
        """Log a subscription that has failed, and is opened again after `delay` seconds.

        The text of the cause may have data, and is not logged. `failing_for` is how long it has
        made no progress.
        """
        name = name_or_other(self._terms.cause(cause))
        is_long = failing_for >= _LONG_FAILURE
        if self._limit.admits(_LASTING if is_long else LogEvent.SUBSCRIPTION_RETRIED, name):
            self._write_of_split(
                logging.WARNING if is_long else logging.INFO,
                LogEvent.SUBSCRIPTION_RETRIED,
                split,
                "resubscribing to %s %s in %.1f s: %s%s",
                split,
                self._terms.position(position),
                delay,
                name,
                f"; there has been no progress for {failing_for:.0f} s" if is_long else "",
                fields=self._failure(position, name, delay),
            )

    def blocked(
        self, split: Split, position: Position, cause: Exception, hint: str, delay: float
    ) -> None:
        """Log a subscription that only a person can make work again."""
        name = name_or_other(self._terms.cause(cause))
        if self._limit.admits(LogEvent.SUBSCRIPTION_BLOCKED, name):
            self._write_of_split(
                logging.ERROR,
                LogEvent.SUBSCRIPTION_BLOCKED,
                split,
                "%s waits for a person, again in %.0f s: %s (%s)",
                split,
                delay,
                text_of(cause),
                hint,
                fields=self._failure(position, name, delay),
            )

    def lost(self, split: Split, gaps: Sequence[Gap]) -> None:
        """Log records that are lost; nothing where there are no gaps."""
        if gaps and self._limit.admits(LogEvent.RECORDS_LOST, str(split)):
            first = gaps[0]
            self._write_of_split(
                logging.ERROR,
                LogEvent.RECORDS_LOST,
                split,
                "records of %s are lost%s: %s",
                split,
                "" if len(gaps) == 1 else f", the first of {len(gaps)} gaps",
                first.reason,
                fields={
                    "fanout.gaps": len(gaps),
                    "fanout.position": self._terms.position(first.after),
                },
            )

    def measured(self, split: Split, seconds: float) -> None:
        """Log how long a gap is, once the record behind it is known.

        The seconds go from the arrival of the last record before it to that of the first one after
        it.
        """
        if self._limit.admits(LogEvent.GAP_MEASURED, str(split)):
            self._write_of_split(
                logging.ERROR,
                LogEvent.GAP_MEASURED,
                split,
                "the lost records of %s arrived within %.3f s",
                split,
                seconds,
                fields={"fanout.gap.duration": seconds},
            )

    def bad(self, split: Split, batch: Batch) -> None:
        """Log that records cannot be decoded; nothing where the batch has all of its records."""
        if batch.bad_records and self._limit.admits(LogEvent.RECORDS_BAD, str(split)):
            self._write_of_split(
                logging.WARNING,
                LogEvent.RECORDS_BAD,
                split,
                "decode has failed for %d records of %s",
                batch.bad_records,
                split,
                fields={
                    "fanout.records": batch.bad_records,
                    "fanout.position": self._terms.position(batch.range.after),
                },
            )

    def decode_waits(
        self, split: Split, position: Position, cause: RetryLaterError, delay: float
    ) -> None:
        """Log that the batch after a position is to be decoded later, in `delay` seconds.

        The text of the cause, which the user's function raised, may have data, and is not logged.
        """
        name = type(cause.__cause__ or cause).__name__
        if self._limit.admits(LogEvent.DECODE_DELAYED, str(split)):
            self._write_of_split(
                logging.WARNING,
                LogEvent.DECODE_DELAYED,
                split,
                "%s waits until its records can be decoded, again in %.1f s: %s",
                split,
                delay,
                name,
                fields=self._failure(position, name, delay),
            )

    def ended(self, end: End) -> None:
        """Log a split that was read to its end."""
        if self._limit.admits(LogEvent.SPLIT_ENDED, ""):
            children = _few(end.children, str)
            self._write_of_split(
                logging.INFO,
                LogEvent.SPLIT_ENDED,
                end.split,
                "%s was read to its end%s",
                end.split,
                children and f"; its children{children}",
                fields={"fanout.children": [child.id for child in end.children]},
            )

    # Splits that processes of a group share.

    def granted(self, split: Split, position: Position) -> None:
        """Log that this process has a split, and where it begins."""
        place = self._terms.position(position)
        self._write_of_split(
            logging.INFO,
            LogEvent.SPLIT_GRANTED,
            split,
            "got %s %s",
            split,
            place,
            fields={"fanout.position": place},
        )

    def handed_over(self, split: Split, position: Position, *, complete: bool) -> None:
        """Log that another process may have a split; whether all of it was acknowledged."""
        place = self._terms.position(position)
        self._write_of_split(
            logging.INFO if complete else logging.WARNING,
            LogEvent.SPLIT_HANDED_OVER,
            split,
            "gave %s up %s%s",
            split,
            place,
            "" if complete else "; what was delivered after it was not acknowledged in time",
            fields={"fanout.position": place, "fanout.complete": complete},
        )

    def split_lost(self, split: Split, position: Position) -> None:
        """Log that another process may have had a split before it was given up."""
        place = self._terms.position(position)
        self._write_of_split(
            logging.WARNING,
            LogEvent.SPLIT_LOST,
            split,
            "lost %s to the group, acknowledged %s",
            split,
            place,
            fields={"fanout.position": place},
        )

    # Its landers.

    def lander_connected(self, lander: LanderName) -> None:
        """Log that a session of a lander begins."""
        self._write_of_lander(
            logging.INFO, LogEvent.LANDER_CONNECTED, lander, "%s is connected", lander
        )

    def lander_gone(self, lander: LanderName, reason: str) -> None:
        """Log that a session is over: its splits go to other landers, or to its next attempt."""
        self._write_of_lander(
            logging.WARNING, LogEvent.LANDER_GONE, lander, "%s is gone: %s", lander, reason
        )

    def lander_refused(self, lander: LanderName) -> None:
        """Log that an attempt has connected while a newer one of the same lander is there."""
        self._write_of_lander(
            logging.INFO,
            LogEvent.LANDER_REFUSED,
            lander,
            "an older attempt of %s is refused, as a newer one is connected",
            lander,
        )

    def lander_failed(self, lander: LanderName, error: FanOutError) -> None:
        """Log the error that a lander has told, and could not go on for."""
        self._write_of_lander(
            logging.WARNING,
            LogEvent.LANDER_FAILED,
            lander,
            "%s has failed: %s",
            lander,
            error,
            fields={"error.type": type(error).__name__},
        )

    def close(self) -> None:
        """Log the summaries that are due; idempotent."""
        self._limit.close()

    def _summarize(self, kind: str, left_out: Counter[str]) -> None:
        event = LogEvent.SUBSCRIPTION_RETRIED if kind == _LASTING else LogEvent(kind)
        level, what = _SUMMARIES[kind]
        counts = [f"{count} of {about}" for about, count in left_out.most_common() if about]
        self._write(
            level,
            event,
            "%d more %s within %.0f s%s",
            left_out.total(),
            what,
            WINDOW,
            _few(counts, str),
            fields={"fanout.more": left_out.total()},
        )

    def _failure(self, position: Position, cause: str, delay: float) -> Mapping[str, object]:
        return {
            "fanout.position": self._terms.position(position),
            "fanout.delay": round(delay, 3),
            "error.type": cause,
        }

    def _write(
        self, level: int, event: LogEvent, message: str, *args: object, fields: Mapping[str, object]
    ) -> None:
        write(level, event, message, *args, fields={**self._fields, **fields})

    def _write_of_split(
        self,
        level: int,
        event: LogEvent,
        split: Split,
        message: str,
        *args: object,
        fields: Mapping[str, object],
    ) -> None:
        of_split = {"messaging.destination.partition.id": split.id, **fields}
        self._write(level, event, message, *args, fields=of_split)

    def _write_of_lander(
        self,
        level: int,
        event: LogEvent,
        lander: LanderName,
        message: str,
        *args: object,
        fields: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        of_lander = {
            "fanout.lander": lander.lander,
            "host.name": lander.host,
            "process.pid": lander.pid,
        }
        self._write(level, event, message, *args, fields={**of_lander, **fields})

    def _place(self, state: SplitProgress) -> str:
        return f"{state.split} {self._terms.position(state.delivered)}".rstrip()

    def _count(self, splits: Collection[object], kind: str = "") -> str:
        return f"{len(splits)} {kind}{self._terms.split}{'' if len(splits) == 1 else 's'}"


def _with_parents(split: Split) -> str:
    return f"{split} (after {' and '.join(split.parents)})" if split.parents else str(split)


def _few(items: Collection[_T], name: Callable[[_T], str]) -> str:
    """Return ": " and the names of the first few; nothing where there are none."""
    shown = ", ".join(name(item) for item in islice(items, _NAMED))
    more = len(items) - _NAMED
    return (shown and f": {shown}") + (f" and {more} more" if more > 0 else "")
