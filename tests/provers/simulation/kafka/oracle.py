"""What the readers of a simulated cluster must get, whatever goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from fanout.core.checkpoint import Checkpoint
from fanout.core.positions import Cursor
from tests.provers.simulation.kafka.reading import KafkaReading
from tests.provers.simulation.kafka.start_check import check_start

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.partitions import Partition
    from tests.provers.simulation.job.process_life import ProcessLife
    from tests.provers.simulation.kafka.sent_answers import SentAnswers
    from tests.provers.simulation.kafka.service import KafkaSimService
    from tests.provers.simulation.kafka.shuffle.watermark_check import WatermarkHistory

__all__ = ("KafkaOracle",)


@final
class KafkaOracle:
    """Know what the partitions hold, and what of it all runs of a reader have got together.

    Args:
        service: What holds them.
        served: What each process was told, by its number.
        reads: Tells whether a partition is one of those that are read.
        start: Where they are read from.
        past: What was heard of the producers of a shuffle; None where there is none.
    """

    generations = 1

    def __init__(
        self,
        service: KafkaSimService,
        sent_answers: dict[int, SentAnswers],
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
        self._sent_answers = sent_answers

    def begin(self, positions: str, life: ProcessLife, *, anew: bool = False) -> KafkaReading:
        """Take note from where a run of the reader goes on.

        Args:
            positions: What it was given, as JSON.
            life: The run.
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
        reading = KafkaReading(self, self._sent_answers[life.number], cursors)
        if anew:
            check_start(self, cursors, self._sent_answers[life.number].since)
        self.readings[life.number] = reading
        return reading
