"""Hold the watermarks that the processes of a job tell against what was written for them."""

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
    """What was heard and told by the processes so far, each of which goes on at stored offsets.

    Args:
        moments: How often each coincidence was met.
        timeout: After how many seconds a producer is silent.
        last_words: From when on only producers write that never stop; infinity where all stop.
        lines: What was known at each offset at which a check was made, in order.
        begun_anew: The partitions that were read once more from an earlier offset, so that an
            offset does not tell any more what was known there.
    """

    moments: Counter[str]
    timeout: float = math.inf
    last_words: float = math.inf
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
        served: What the cluster has told the process.
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
        self._untold: set[Partition] = set()
        self.ended: set[Partition] = set()
        """The partitions that have ended."""
        self._heard = {
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
        self._hear(partition, stood, range(self._heard[partition].era, era + 1))
        self._hear(partition, until, [era])
        self._tell(partition, watermark)

    def lose(self, partition: Partition, stood: int, to: int, era: int) -> None:
        """Take note that a process goes on elsewhere, as something is lost.

        Args:
            partition: Of which partition.
            stood: The offset at which it stood.
            to: The offset with which it goes on.
            era: The era that this is in.
        """
        heard = self._heard[partition]
        self._hear(partition, stood, range(heard.era, max(era, heard.era + 1)))
        if to < stood:
            heard.forget(to, era)
            self._past.begun_anew.add(partition)
        heard.offset, heard.era = to, era

    def look(self, stream: FanOut, gaps: Mapping[Partition, int]) -> None:
        """Check what a stream tells between two reads.

        Args:
            stream: The stream.
            gaps: How often its job was told that records are lost, by partition.

        Raises:
            OracleError: If a watermark goes back, or is where it must not be, or a partition has
                ended before its producers have.
        """
        splits = stream.statistics().splits
        for name, split in splits.items():
            partition = Partition.of(name)
            # What is lost is told with the next record, and until then nothing else is.
            if split.gaps != gaps[partition]:
                self._untold.add(partition)
                continue
            self._untold.discard(partition)
            if isinstance(split.position, Cursor):
                self._hear(partition, split.position.sequence + 1, self._eras(partition))
                self._tell(partition, split.watermark)
        for name, state in stream.delivered.splits.items():
            if state.ended:
                self._end(Partition.of(name))
        self._check_stream(stream.watermark, splits)

    def held_back(self, partition: Partition, now: float) -> bool:
        """Tell whether the watermark of a partition is lower than what its log says."""
        heard, log = self._heard[partition], self._logs[partition]
        place = log.place(now)
        if heard.blind or place is None or partition in self.ended | self._untold:
            return False
        era = log.eras[place]
        end = era.end(now, committed=True)
        if not era.start(now) <= heard.offset <= end:
            return False
        at_end = replace(heard.copy(), moments=Counter())
        at_end.hear(era.spoken(heard.offset, end), end, now)
        dues = at_end.due, heard.due_without(self._past.last_words)
        due = max((due for due in dues if due is not None), default=None)
        return due is not None and (heard.watermark is None or heard.watermark < due)

    def may_be_silent(self, partition: Partition, now: float) -> bool:
        """Tell whether a producer of a partition may have been silent for too long."""
        heard = self._heard[partition]
        return heard.blind or not heard.has_producers or bool(heard.silent(now))

    def _end(self, partition: Partition) -> None:
        told = partition not in self.ended | self._untold
        if told and not self._heard[partition].ended:
            raise OracleError(f"lost: {partition} has ended before its producers have")
        self.ended.add(partition)

    def _resumed(self, partition: Partition, offset: int | None, era: int) -> ExpectedWatermark:
        """Return what is known at a stored offset; what was heard behind it counts no more."""
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
        heard, now = line[-1].copy(), self._sent_responses.since
        self._past.moments[KafkaSometimes.KNOWN_AGAIN] += heard.has_producers
        heard.blind = heard.blind or offset is None or partition in self._past.begun_anew
        if offset is not None:
            eras = self._logs[partition].eras
            begun = [era for era in range(heard.era, len(eras)) if eras[era].since <= now]
            self._take(heard, offset, begun)
        heard.resume(now)
        return heard

    def _hear(self, partition: Partition, end: int, eras: Sequence[int]) -> None:
        self._take(self._heard[partition], end, eras)

    def _take(self, heard: ExpectedWatermark, end: int, eras: Sequence[int]) -> None:
        """Take in what comes up to an offset, unless it depends on the era what that is."""
        if heard.blind or end <= heard.offset:
            return
        log = self._logs[heard.partition]
        found = [list(log.eras[era].spoken(heard.offset, end)) for era in eras]
        if not found or any(each != found[0] for each in found):
            heard.blind = True
            return
        heard.hear(found[0], end, self._now)
        heard.era = eras[0]

    def _tell(self, partition: Partition, watermark: int | None) -> None:
        heard = self._heard[partition]
        if heard.blind:
            return
        heard.tell(watermark, self._now)
        line = self._past.lines[partition]
        if not line or (line[-1].offset, line[-1].watermark) != (heard.offset, watermark):
            line.append(heard.copy())

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _eras(self, partition: Partition) -> list[int]:
        """Return the eras in which a process may read."""
        seen = self._sent_responses.eras[partition]
        first = self._heard[partition].era
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
        told = [height for height in heights if height is not None]
        if told and len(told) == len(heights) and (watermark is None or watermark < min(told)):
            raise OracleError(
                f"watermark held back: the stream's is {watermark}, that of each partition at "
                f"least {min(told)}"
            )
