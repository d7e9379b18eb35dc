"""Compare what the runs of a reader get with what a simulated cluster holds, record by record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from fanout.core.checkpoint import Checkpoint
from fanout.core.positions import Cursor
from fanout.kafka.partitions import Partition
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kafka.comparison import difference, records_of
from tests.provers.simulation.kafka.moments import KafkaSometimes
from tests.provers.simulation.kafka.shuffle.watermark_check import WatermarkCheck
from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.core.events import Batch, Gap
    from fanout.core.fan_out import FanOut
    from fanout.core.positions import Position
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kafka.partition_log import KafkaRecord, LogEra
    from tests.provers.simulation.kafka.sent_responses import SentResponses
    from tests.provers.simulation.kafka.service import KafkaSimService
    from tests.provers.simulation.kafka.shuffle.watermark_check import WatermarkHistory


__all__ = ("KafkaOracle", "KafkaReading", "PartitionProgress")


@final
@dataclass(slots=True)
class PartitionProgress:
    """The progress of one run of the reader in one partition.

    Args:
        next: The offset that it has to get next, or a later one.
        era: In which era of the partition that is.
        begun: Whether it was begun at an offset; otherwise it begins with the oldest there is.
        acknowledged: The offset after the last that its job has acknowledged, as the latest.
        furthest: The highest of those, also where the partition has changed since then.
        records: The records that it has got.
        nbytes: Their bytes in memory.
        gaps: How many gaps were reported to it.
        anew: Whether it has begun anew, with a log that has taken the place of another one.
    """

    next: int
    era: int
    begun: bool
    acknowledged: int
    furthest: int
    records: int = 0
    nbytes: int = 0
    gaps: int = 0
    anew: bool = False


@final
class KafkaReading:
    """Compare what one run gets with the logs after its stored positions, record by record.

    Args:
        oracle: What all runs have got together.
        sent_responses: The responses of the cluster to the run.
        stored: The offset of each partition with which it goes on, by the partition's name.
    """

    def __init__(
        self, oracle: KafkaOracle, sent_responses: SentResponses, stored: Mapping[str, int]
    ) -> None:
        self._oracle = oracle
        self._sent_responses = sent_responses
        self.places = {
            partition: self._stored_place(partition, stored.get(str(partition)))
            for partition in oracle.logs
        }
        for partition, place in self.places.items():
            reached = oracle.reached.get(partition, 0)
            log = oracle.logs[partition].eras[place.era]
            oracle.replayed += len(log.records(place.next, reached, committed=oracle.committed))
        self.stream: FanOut | None = None
        self._watch: WatermarkCheck | None = None
        if oracle.past is not None:
            eras = {partition: place.era for partition, place in self.places.items()}
            self._watch = WatermarkCheck(oracle.logs, oracle.past, sent_responses, stored, eras)

    def look(self) -> None:
        """Check the watermarks that the stream reports between two reads, where it has any.

        Raises:
            OracleError: If they are wrong.
        """
        if self._watch is not None and self.stream is not None:
            gaps = {partition: place.gaps for partition, place in self.places.items()}
            self._watch.look(self.stream, gaps)

    def may_be_silent(self, partition: Partition) -> bool:
        """Return whether a producer of a shuffle may have been silent for too long."""
        return self._watch is not None and self._watch.may_be_silent(partition, self._now)

    def missing(self, broken: str | None) -> dict[str, int]:
        """Return how many records of each partition are still to come, and whether a watermark is.

        Args:
            broken: A partition that stays broken, of which nothing is missed.
        """
        self.look()
        ended = set() if self._watch is None else self._watch.ended
        whole = [p for p in self.places if str(p) != broken and p not in ended]
        missing = {str(partition): self._missing(partition) for partition in whole}
        if self._watch is not None:
            missing |= {f"watermark of {p}": self._watch.held_back(p, self._now) for p in whole}
        return {name: count for name, count in missing.items() if count}

    def generations(self) -> int:
        """Return 1: no partition continues another one."""
        return 1

    def deliver(self, batch: Batch) -> None:
        """Check one batch.

        Raises:
            OracleError: If it is not exactly what comes next.
        """
        partition = Partition.of(batch.split.id)
        place = self.places[partition]
        for gap in batch.gaps:
            self._take_gap(partition, place, gap)
        got = list(records_of(batch, partition))
        until = _after(batch.range.until)
        stood = batch.range.after.sequence + 1 if isinstance(batch.range.after, Cursor) else until
        eras = self._oracle.logs[partition].eras
        for number in range(place.era, len(eras)):
            if number in self._sent_responses.eras[partition] and (
                got == self._due(partition, number, got[0].offset, stood, until)
            ):
                break
        else:
            committed = self._oracle.committed
            raise OracleError(
                difference(partition, eras[place.era], got, place.next, until, committed=committed)
            )
        self._oracle.checked += len(got)
        if not place.begun:
            place.acknowledged = got[0].offset
        place.next = max(place.next, until) if number == place.era else until
        place.era, place.begun = number, True
        place.records += batch.num_records
        place.nbytes += batch.nbytes
        if self._watch is not None:
            self._watch.deliver(partition, number, stood, until, batch.watermark)
        reached = self._oracle.reached.get(partition, 0)
        self._oracle.reached[partition] = max(reached, place.next)

    def acknowledge(self, splits: Mapping[str, Position]) -> None:
        """Record what the job has acknowledged."""
        for name, position in splits.items():
            place = self.places[Partition.of(name)]
            if not isinstance(position, Cursor):
                continue
            offset = position.sequence + 1
            place.furthest = max(place.furthest, offset)
            # What comes later than all that was handed on is of the log before.
            if offset <= place.next or not place.anew:
                place.acknowledged = max(place.acknowledged, offset)

    def check_acknowledged(self, positions: str) -> None:
        """Check positions that the stream calls acknowledged: everything before them is.

        Raises:
            OracleError: If it is not.
        """
        for partition, offset in _offsets_of(positions).items():
            place = self.places[partition]
            if place.begun and self.owed(partition, place.acknowledged, offset):
                raise OracleError(
                    f"lost: {partition} is acknowledged up to {offset} by position, but up to "
                    f"{place.acknowledged}"
                )

    def check_stored(self, positions: str) -> None:
        """Check positions that are about to be stored: everything before them was handed on.

        Raises:
            OracleError: If it was not.
        """
        for partition, offset in _offsets_of(positions).items():
            place = self.places[partition]
            if place.begun and self.owed(partition, place.next, offset, era=place.era):
                raise OracleError(
                    f"lost: the stored position of {partition} is {offset}, but only what comes "
                    f"before {place.next} was handed on"
                )

    def owed(self, partition: Partition, first: int, end: int, *, era: int = 0) -> bool:
        """Return whether there are records between two offsets, in every era that may be meant.

        Args:
            partition: The partition.
            first: The first offset.
            end: The offset after the last.
            era: The earliest of the eras that may be meant.
        """
        now = self._now
        return all(
            each.records(first, end, committed=self._oracle.committed)
            for each in self._oracle.logs[partition].eras[era:]
            if each.since <= now
        )

    def oldest(self, partition: Partition) -> int:
        """Return the oldest offset that a partition has now."""
        era = self._oracle.logs[partition].era(self._now)
        return 0 if era is None else era.start(self._now)

    def _stored_place(self, partition: Partition, offset: int | None) -> PartitionProgress:
        """Return where a run begins that goes on with an offset, or with the oldest there is."""
        log = self._oracle.logs[partition]
        era = log.place(self._now) or 0
        if offset is None:
            return PartitionProgress(
                log.eras[era].start(self._now), era, begun=False, acknowledged=0, furthest=0
            )
        # The position may be of an era that is over; it does not say so.
        return PartitionProgress(offset, 0, begun=True, acknowledged=offset, furthest=offset)

    def _missing(self, partition: Partition) -> int:
        log, now = self._oracle.logs[partition], self._now
        place, era = self.places[partition], log.era(now)
        if era is None:
            return 0
        start, end = era.start(now), era.end(now, committed=self._oracle.committed)
        stands = self._sent_responses.asked.get(partition, 0)
        if self.owed(partition, place.next, stands, era=place.era):
            stands = 0  # what it has asked for is on its way
        first = max(place.next, stands)
        first = first if start <= first <= era.high_watermark(now) else start
        return len(era.records(first, end, committed=self._oracle.committed))

    def _due(
        self, partition: Partition, number: int, offset: int, stood: int, until: int
    ) -> list[KafkaRecord]:
        """Return what comes next in an era.

        Args:
            partition: The partition.
            number: The place of the era.
            offset: The first offset that has come.
            stood: Where the reader stood before that, as it says.
            until: Where it stands now.
        """
        place, committed = self.places[partition], self._oracle.committed
        eras = self._oracle.logs[partition].eras
        first = place.next
        if not place.begun:
            # What has expired before a reader came is no loss to it.
            first = max(first, min(eras[number].start(self._now), offset))
        skipped = min(stood, offset)
        for older in range(place.era, number):
            # There was nothing to be read there before the new era began.
            if not eras[older].records(place.next, skipped, committed=committed):
                first = max(first, skipped)
        return eras[number].records(first, until, committed=committed)

    def _take_gap(self, partition: Partition, place: PartitionProgress, gap: Gap) -> None:
        """Check that reported records are lost; go on behind it.

        Raises:
            OracleError: If it is not.
        """
        place.gaps += 1
        log, now = self._oracle.logs[partition], self._now
        stood, to = _after(gap.after), _after(gap.until)
        if self.owed(partition, place.next, stood, era=place.era):
            raise OracleError(
                f"lost: {partition} was read up to {place.next}, but a gap begins at {stood}"
            )
        if not log.lost(stood, self._sent_responses.since, now):
            raise OracleError(
                f"lost: {partition} was given up at {stood} ({gap.reason}), although the cluster "
                f"still had it"
            )
        fitting = [
            number
            for number in range(place.era, len(log.eras))
            if log.eras[number].since <= now and self._may_begin(log.eras[number], to, now)
        ]
        if not fitting:
            raise OracleError(f"lost: {partition} goes on at {to}, where no log has ever begun")
        moment = KafkaSometimes.GAP_BACK if to < stood else KafkaSometimes.GAP_AHEAD
        self._oracle.moments[moment] += 1
        if to < stood:
            # Only another log can begin before what was read already.
            place.acknowledged, place.anew = to, True
            fitting = [number for number in fitting if number > place.era] or fitting
        place.next, place.era = to, fitting[0]
        if self._watch is not None:
            self._watch.lose(partition, stood, to, place.era)

    @staticmethod
    def _may_begin(era: LogEra, to: int, now: float) -> bool:
        return to == 0 or any(start == to for at, start in era.starts if at <= now)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _after(position: Position | None) -> int:
    """Return the first offset after a position."""
    return position.sequence + 1 if isinstance(position, Cursor) else 0


def _offsets_of(positions: str) -> dict[Partition, int]:
    stored = Checkpoint.from_json(positions).splits
    return {
        Partition.of(id_): state.position.sequence + 1
        for id_, state in stored.items()
        if isinstance(state.position, Cursor)
    }


@final
class KafkaOracle:
    """Know what the partitions hold, and what of it all runs of a reader have got together.

    Args:
        service: What holds them.
        sent_responses: The responses to each process, by its number.
        reads: Returns whether a partition is one of those that are read.
        start: Where they are read from.
        past: The frames received of the producers of a shuffle; None where there is none.
    """

    generations = 1

    def __init__(
        self,
        service: KafkaSimService,
        sent_responses: dict[int, SentResponses],
        reads: Callable[[Partition], bool],
        start: Literal["earliest", "latest", "timestamp"],
        past: WatermarkHistory | None = None,
    ) -> None:
        self.logs = {p: log for p, log in service.cluster.logs.items() if reads(p)}
        self.moments = service.moments
        self.start = start
        self.past = past
        self.cluster = service.cluster
        self.committed = service.committed
        self.checked = 0
        self.replayed = 0
        self.readings: dict[int, KafkaReading] = {}
        self.reached: dict[Partition, int] = {}
        """The furthest offset of each partition that any run has got to."""
        self._sent_responses = sent_responses

    def begin(self, positions: str, run: ProcessRun, *, anew: bool = False) -> KafkaReading:
        """Take note from where a run of the reader goes on.

        Args:
            positions: What it was given, as JSON.
            run: The run.
            anew: Whether nothing was stored before, so that the stream begins there.

        Raises:
            OracleError: If the stream begins behind something that is wanted.
            PositionError: If that is no JSON of positions.
        """
        stored = Checkpoint.from_json(positions).splits
        cursors = {
            id_: state.position.sequence + 1
            for id_, state in stored.items()
            if isinstance(state.position, Cursor)
        }
        reading = KafkaReading(self, self._sent_responses[run.number], cursors)
        if anew:
            self._check_start(cursors, self._sent_responses[run.number].since)
        self.readings[run.number] = reading
        return reading

    def _check_start(self, offsets: Mapping[str, int], since: float) -> None:
        """Check where a stream begins: before all that is wanted, and not before what is not.

        Args:
            offsets: The first offset of each partition.
            since: When its process began, in virtual seconds.

        Raises:
            OracleError: If it begins elsewhere.
        """
        now = asyncio.get_running_loop().time()
        for partition, log in self.logs.items():
            offset, era = offsets.get(str(partition)), log.era(now)
            if offset is None or era is None or era is not log.era(since):
                continue  # it may have become another one in between
            first, last = self._first_offset(era, since), self._first_offset(era, now)
            if self.cluster.lags_between(partition, since, now):
                first = era.start(since)
            if not first <= offset <= last:
                raise OracleError(
                    f"lost: {partition} begins at {offset}, and not between {first} and {last}"
                )

    def _first_offset(self, era: LogEra, now: float) -> int:
        """Return where a stream begins that asks at a moment."""
        match self.start:
            case "earliest":
                return era.start(now)
            case "latest":
                return era.end(now, committed=self.committed)
            case "timestamp":
                found = era.at_time(EPOCH_MILLIS, now, committed=self.committed)
                return era.end(now, committed=self.committed) if found is None else found
