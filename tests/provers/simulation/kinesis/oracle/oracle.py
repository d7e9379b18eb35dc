"""What a reader must get, whatever goes wrong and however often it starts again."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fanout.core.checkpoint import Checkpoint
from tests.provers.simulation.kinesis.oracle.reading import KinesisReading
from tests.provers.simulation.kinesis.oracle.shard_rows import ShardRows

if TYPE_CHECKING:
    from tests.provers.simulation.job.process_life import ProcessLife
    from tests.provers.simulation.kinesis.service.service import KinesisSimService
    from tests.provers.simulation.kinesis.service.stream_log import SourceLog

__all__ = ("KinesisOracle",)


@final
class KinesisOracle:
    """Know what the stream holds, and what of it all runs of a reader have got together.

    Args:
        log: What the stream holds.
        service: Which of it has expired.
    """

    def __init__(self, log: SourceLog, service: KinesisSimService) -> None:
        self.log = log
        self.retention = service.retention
        self.damage = service.damage
        self.checked = 0
        self.replayed = 0
        self.shards = {
            id_: ShardRows(shard.rows, [(row.sequence, row.sub) for row in shard.rows])
            for id_, shard in log.shards.items()
        }

    @property
    def generations(self) -> int:
        """How many shards can continue each other at the most."""
        return len(self.shards)

    def begin(self, positions: str, life: ProcessLife, *, anew: bool = False) -> KinesisReading:
        """Take note from where a run of the reader goes on.

        Args:
            positions: What it was given, as JSON.
            life: The run.
            anew: Whether nothing was stored before, so that the stream begins there.

        Raises:
            OracleError: If records are behind it that no run has got.
            PositionError: If that is no JSON of positions.
        """
        stored = Checkpoint.from_json(positions).splits
        if anew:
            for shard_id, shard in self.shards.items():
                # Another process may have begun at the same time, and have read on.
                shard.reached = max(shard.reached, shard.stored_place(stored.get(shard_id)))
        reading = KinesisReading(self, life, stored)
        reading.check_stored(positions)
        return reading
