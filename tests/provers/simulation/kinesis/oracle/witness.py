"""Check what is reported to one process, how soon, and its counters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from fanout.core.statistics import SplitState
from fanout.kinesis.aws.error_hints import code_of
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kinesis.oracle.backoff_check import BackoffCheck

if TYPE_CHECKING:
    from fanout.core.events import Split
    from fanout.core.fan_out import FanOut
    from fanout.core.statistics import SplitStatistics
    from fanout.kinesis.options import KinesisOptions
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.oracle.oracle import KinesisReading
    from tests.provers.simulation.kinesis.oracle.subscribe_attempts import SubscribeAttempt
    from tests.provers.simulation.kinesis.service.stream_log import SourceLog

__all__ = ("KinesisWitness",)

_PROMPT: Final = 1.0
# More than all that a simulated stream holds, so that no read waits for memory.
_PLENTY: Final = 256 * 1024 * 1024
# A listing may hang, and the next one is waited for as long as anything is.
_DISCOVERY: Final = 250.0
# Between the calls about a consumer that is registered again; see fanout.kinesis.opening.
_BETWEEN_CALLS: Final = 5.0
# What comes with these may first have to be handed over, to a consumer that takes its time.
_BEHIND_DATA: Final = {"MalformedEventError", "UnconfirmedEndError"}
# With these a shard that is closed may have ended; that, too, has to be handed over.
_OF_AN_END: Final = {"ResourceNotFoundException", "InvalidArgumentException"}


@final
class KinesisWitness:
    """Check what is reported to one process about its subscriptions, and when.

    Args:
        run: The process.
        log: What the stream holds.
        options: The options of the user.
    """

    def __init__(self, run: ProcessRun, log: SourceLog, options: KinesisOptions) -> None:
        self._run = run
        self._log = log
        self._options = options
        self._stream: FanOut | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waits: dict[str, BackoffCheck] = {}
        run.attempts.on_end = self._ended

    def opened(self, stream: FanOut) -> None:
        """Begin to look at a stream."""
        self._stream = stream

    def looks(self) -> None:
        """Do nothing between two reads: everything is reported by callbacks."""

    def resubscribes(self, split: Split, cause: Exception, delay: float) -> None:
        """Check a call of `on_resubscribe`; this method is such a callback.

        Args:
            split: What is subscribed to again.
            cause: Why its last subscription has ended.
            delay: In how many seconds.
        """
        run = self._run
        if run.dead or self._stream is None:
            return
        self._check_patience(run.attempts.last(split.id))
        run.attempts.report(split.id, cause, self._now, self._options)
        last, waits = run.attempts.last(split.id), self._waits.setdefault(split.id, BackoffCheck())
        progressed = last is not None and last.progressed
        if why := waits.check(cause, delay, self._options.pacing, progressed=progressed):
            self._wrong(f"{split}: {why}")
        statistics = self._stream.statistics()
        counters = statistics.splits[split.id]
        if counters.state is not SplitState.BACKING_OFF or counters.lag is not None:
            self._wrong(
                f"{split} backs off, but its state is {counters.state}, {counters.lag} s behind"
            )
        if counters.last_cause is not cause:
            self._wrong(f"{split} backs off because of {cause!r}, not {counters.last_cause!r}")
        if statistics.bytes_in_flight > run.held.limit:
            self._wrong(f"unbounded: {statistics.bytes_in_flight} bytes are in flight")

    def closing(self, reading: KinesisReading) -> None:
        """Compare the counters of a stream that is about to be closed with what was seen."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._stream is None or self._run.dead:
            return
        self._check_discovery(self._stream)
        for shard_id, counted in self._stream.statistics().splits.items():
            for name, reported, seen in self._counters(shard_id, counted, reading):
                if reported != seen:
                    self._wrong(f"miscounted: {name} of {shard_id} is {reported}, not {seen}")
            standing = reading.standings[shard_id]
            place = reading.place_of(shard_id, counted.position)
            if reading.is_expired(shard_id):
                continue  # where the stream stands in it is as it was
            ended = counted.state is SplitState.ENDED
            if not ended and not standing.next <= place <= reading.standing_place(shard_id):
                self._wrong(f"miscounted: {shard_id} is reported as read up to row {place}")
            seconds = counted.gap_seconds
            if (
                counted.gaps < standing.gaps
                or not 0 <= round(1000 * seconds) <= standing.gap_millis
            ):
                self._wrong(f"miscounted: {counted.gaps} gaps of {shard_id} take {seconds} s")

    def closed(self) -> None:
        """Look at what is left of the stream.

        Raises:
            OracleError: If something was wrong about the process.
        """
        run = self._run
        if not run.dead and self._stream is not None:
            in_flight = self._stream.statistics().bytes_in_flight
            if in_flight:
                self._wrong(f"leaked: {in_flight} bytes are in flight in a closed stream")
        wrongs = run.attempts.wrongs + run.held.wrongs
        if wrongs and not run.dead:
            raise OracleError("; ".join(wrongs[:5]))

    def _check_discovery(self, stream: FanOut) -> None:
        """Check that the shards are still looked for, however often that has failed."""
        since = running_loop().awake - self._run.listed_at
        if stream.failure is None and since > self._options.discovery_interval + _DISCOVERY:
            self._wrong(f"no listing of the shards for {since:.0f} s")

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wrong(self, what: str) -> None:
        self._run.attempts.wrongs.append(what)

    def _check_patience(self, attempt: SubscribeAttempt | None) -> None:
        """Check that a service that says nothing was not waited for too long."""
        if attempt is None or attempt.ending is not None or self._options.mode != "efo":
            return
        if attempt.blocked != running_loop().blocked or self._options.max_bytes_in_flight < _PLENTY:
            return  # a loop that stood still, and a wait for memory, are no silence
        pacing = self._options.pacing
        patience = pacing.silence_timeout if attempt.live else pacing.subscribe_timeout
        waited = self._now - attempt.waiting_since
        if waited > patience + _PROMPT:
            self._wrong(f"late: {attempt.shard_id} was waited for {waited:g} s")

    def _counters(
        self, shard_id: str, counted: SplitStatistics, reading: KinesisReading
    ) -> list[tuple[str, object, object]]:
        standing, attempts = reading.standings[shard_id], self._run.attempts
        return [
            ("records", counted.records, standing.records),
            ("bytes", counted.bytes, standing.nbytes),
            ("subscriptions", counted.subscriptions, attempts.answered[shard_id]),
            ("resubscriptions", counted.resubscriptions, attempts.reported[shard_id]),
        ]

    def _ended(self, attempt: SubscribeAttempt) -> None:
        """Check that the end of a subscription is reported within a second."""
        if self._run.dead or self._stream is None:
            return
        match attempt.ending:
            case (kind, _) if kind.__name__ in _BEHIND_DATA:
                return
            case (_, code):
                pass
            case error:
                code = code_of(error) or "" if isinstance(error, Exception) else ""
        if code in _OF_AN_END and self._log.shards[attempt.shard_id].closed is not None:
            return
        self._look_at(attempt)

    def _look_at(self, attempt: SubscribeAttempt) -> None:
        if timer := self._timers.pop(attempt.shard_id, None):
            timer.cancel()
        loop = running_loop()
        self._timers[attempt.shard_id] = loop.call_later(
            _PROMPT, self._check_reported, attempt, loop.blocked
        )

    def _check_reported(self, attempt: SubscribeAttempt, blocked: float) -> None:
        del self._timers[attempt.shard_id]
        run = self._run
        if run.dead or attempt.cause is not None or self._stream is None:
            return
        if attempt.ending is None:
            return  # what was to end it was dropped
        if self._stream.failure is not None:
            return
        busy = run.calling or self._now - run.called_at <= _BETWEEN_CALLS + _PROMPT
        reading = self._now - attempt.whole_at < _PROMPT
        if busy or reading or blocked != running_loop().blocked:
            self._look_at(attempt)
            return
        self._wrong(
            f"swallowed: it was not reported in time that {attempt.ending} has ended a subscription"
        )
