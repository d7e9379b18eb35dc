"""Compare the watermarks that a job reports with the frames that were written for it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from fanout.core.positions import Cursor
from fanout.kafka.partitions import Partition
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kafka.moments import KafkaSometimes
from tests.provers.simulation.kafka.shuffle.expected_watermark import ExpectedWatermark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.fan_out import FanOut
    from fanout.core.statistics import SplitStatistics
    from tests.provers.simulation.kafka.partition_log import PartitionLog
    from tests.provers.simulation.kafka.sent_responses import SentResponses

__all__ = ("WatermarkCheck", "WatermarkHistory")


@final
@dataclass(slots=True)
class WatermarkHistory:
    """The frames received and watermarks reported so far, by processes that follow each other.

    Args:
        moments: The count of each coincidence.
        timeout: After how many seconds a producer is silent.
        last_stop: From when on only producers write that never stop; infinity where all stop.
        lines: What was known at each offset at which a check was made, in order.
        begun_anew: The partitions that were read once more from an earlier offset, so that an
            offset does not determine any more what was known there.
    """

    moments: Counter[str]
    timeout: float = math.inf
    last_stop: float = math.inf
    lines: defaultdict[Partition, list[ExpectedWatermark]] = field(
        default_factory=lambda: defaultdict(list)
    )
    begun_anew: set[Partition] = field(default_factory=set)


@final
class WatermarkCheck:
    """Look at the watermarks of one process.

    Args:
        logs: What the partitions hold.
        past: What was known before.
        sent_responses: The responses that the cluster has sent to the process.
        stored: The offset with which it goes on in each partition, by the partition's name.
        eras: In which era it begins in partitions of which nothing was known before.
    """

    def __init__(
        self,
        logs: Mapping[Partition, PartitionLog],
        past: WatermarkHistory,
        sent_responses: SentResponses,
        stored: Mapping[str, int],
        eras: Mapping[Partition, int],
    ) -> None:
        self._logs = logs
        self._past = past
        self._sent_responses = sent_responses
        self._stream: int | None = None
        self._seen: set[str] = set()
        self._unreported: set[Partition] = set()
        self.ended: set[Partition] = set()
        """The partitions that have ended."""
        self._expected = {
            partition: self._resumed(partition, stored.get(str(partition)), eras[partition])
            for partition in logs
        }

    def deliver(
        self, partition: Partition, era: int, stood: int, until: int, watermark: int | None
    ) -> None:
        """Check a batch.

        Args:
            partition: Its partition.
            era: The era that it is of.
            stood: The offset before it.
            until: The offset after it.
            watermark: The watermark after it.

        Raises:
            OracleError: If one of its records is late, or the watermark goes back.
        """
        self._receive(partition, stood, range(self._expected[partition].era, era + 1))
        self._receive(partition, until, [era])
        self._report(partition, watermark)

    def lose(self, partition: Partition, stood: int, to: int, era: int) -> None:
        """Record that a process goes on at another offset, because records are lost.

        Args:
            partition: Of which partition.
            stood: The offset at which it stood.
            to: The offset with which it goes on.
            era: The era that this is in.
        """
        expected = self._expected[partition]
        self._receive(partition, stood, range(expected.era, max(era, expected.era + 1)))
        if to < stood:
            expected.forget(to, era)
            self._past.begun_anew.add(partition)
        expected.offset, expected.era = to, era

    def look(self, stream: FanOut, gaps: Mapping[Partition, int]) -> None:
        """Check what a stream reports between two reads.

        Args:
            stream: The stream.
            gaps: How many gaps were reported to its job, by partition.

        Raises:
            OracleError: If a watermark goes back, or is where it must not be, or a partition has
                ended before its producers have.
        """
        splits = stream.statistics().splits
        for name, split in splits.items():
            partition = Partition.of(name)
            # A gap is reported with the next record, and nothing else is reported before it.
            if split.gaps != gaps[partition]:
                self._unreported.add(partition)
                continue
            self._unreported.discard(partition)
            if isinstance(split.position, Cursor):
                self._receive(partition, split.position.sequence + 1, self._eras(partition))
                self._report(partition, split.watermark)
        for name, state in stream.delivered.splits.items():
            if state.ended:
                self._end(Partition.of(name))
        self._check_stream(stream.watermark, splits)

    def held_back(self, partition: Partition, now: float) -> bool:
        """Return whether the watermark of a partition is lower than its log allows."""
        expected, log = self._expected[partition], self._logs[partition]
        place = log.place(now)
        if expected.blind or place is None or partition in self.ended | self._unreported:
            return False
        era = log.eras[place]
        end = era.end(now, committed=True)
        if not era.start(now) <= expected.offset <= end:
            return False
        at_end = replace(expected.copy(), moments=Counter())
        at_end.receive(era.spoken(expected.offset, end), end, now)
        dues = at_end.due, expected.due_without(self._past.last_stop)
        due = max((due for due in dues if due is not None), default=None)
        return due is not None and (expected.watermark is None or expected.watermark < due)

    def may_be_silent(self, partition: Partition, now: float) -> bool:
        """Return whether a producer of a partition may have been silent for too long."""
        expected = self._expected[partition]
        return expected.blind or not expected.has_producers or bool(expected.silent(now))

    def _end(self, partition: Partition) -> None:
        reported = partition not in self.ended | self._unreported
        if reported and not self._expected[partition].ended:
            raise OracleError(f"lost: {partition} has ended before its producers have")
        self.ended.add(partition)

    def _resumed(self, partition: Partition, offset: int | None, era: int) -> ExpectedWatermark:
        """Return what is known at a stored offset; what was received behind it counts no more."""
        line = self._past.lines[partition]
        while line and offset is not None and line[-1].offset > offset:
            line.pop()
        if not line:
            past, blind = self._past, offset is None
            line.append(
                ExpectedWatermark(
                    partition, offset or 0, era, past.moments, past.timeout, blind=blind
                )
            )
        while len(line) > 1 and line[-2].offset == line[-1].offset:
            line.pop()  # a producer was left out there, which may not have been stored yet
        expected, now = line[-1].copy(), self._sent_responses.since
        self._past.moments[KafkaSometimes.KNOWN_AGAIN] += expected.has_producers
        expected.blind = expected.blind or offset is None or partition in self._past.begun_anew
        if offset is not None:
            eras = self._logs[partition].eras
            begun = [era for era in range(expected.era, len(eras)) if eras[era].since <= now]
            self._take(expected, offset, begun)
        expected.resume(now)
        return expected

    def _receive(self, partition: Partition, end: int, eras: Sequence[int]) -> None:
        self._take(self._expected[partition], end, eras)

    def _take(self, expected: ExpectedWatermark, end: int, eras: Sequence[int]) -> None:
        """Receive the frames up to an offset, unless they depend on the era."""
        if expected.blind or end <= expected.offset:
            return
        log = self._logs[expected.partition]
        found = [list(log.eras[era].spoken(expected.offset, end)) for era in eras]
        if not found or any(each != found[0] for each in found):
            expected.blind = True
            return
        expected.receive(found[0], end, self._now)
        expected.era = eras[0]

    def _report(self, partition: Partition, watermark: int | None) -> None:
        expected = self._expected[partition]
        if expected.blind:
            return
        expected.report(watermark, self._now)
        line = self._past.lines[partition]
        if not line or (line[-1].offset, line[-1].watermark) != (expected.offset, watermark):
            line.append(expected.copy())

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _eras(self, partition: Partition) -> list[int]:
        """Return the eras in which a process may read."""
        seen = self._sent_responses.eras[partition]
        first = self._expected[partition].era
        return [era for era in range(first, len(self._logs[partition].eras)) if era in seen]

    def _check_stream(self, watermark: int | None, splits: Mapping[str, SplitStatistics]) -> None:
        """Check the watermark of the whole stream.

        Raises:
            OracleError: If it goes back, or is above that of a partition that was there before.
        """
        before, self._stream = self._stream, watermark
        if before is not None and (watermark is None or watermark < before):
            raise OracleError(f"watermark went back: the stream's was {before}, and is {watermark}")
        present = {name for name in splits if Partition.of(name) not in self.ended}
        if watermark is not None and watermark != before:
            for name in sorted(self._seen & present):
                of_split = splits[name].watermark
                if of_split is None or of_split < watermark:
                    raise OracleError(
                        f"late: the stream's watermark is {watermark}, that of {name} {of_split}"
                    )
        self._seen = present
        heights = [splits[name].watermark for name in present]
        known = [height for height in heights if height is not None]
        if known and len(known) == len(heights) and (watermark is None or watermark < min(known)):
            raise OracleError(
                f"watermark held back: the stream's is {watermark}, that of each partition at "
                f"least {min(known)}"
            )
