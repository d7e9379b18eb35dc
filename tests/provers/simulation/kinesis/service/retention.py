"""The records and shards of a simulated stream that have expired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from tests.support.kinesis.client_errors import client_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.service.stream_log import SourceLog, SourceShard

__all__ = ("Retention",)

_AT: Final = "AT_SEQUENCE_NUMBER"
_NUMBERED: Final = {_AT, "AFTER_SEQUENCE_NUMBER"}


@final
class Retention:
    """Say what is left of each shard, and where a starting position is in it.

    `trimmed` holds the newest number of each shard that has expired, and `expired` the shards that
    are gone as a whole.

    Args:
        log: What the stream has held.
    """

    def __init__(self, log: SourceLog) -> None:
        self.trimmed: dict[str, int] = {}
        self.expired: dict[str, None] = {}
        self._log = log
        self._latest = 0

    def trim(self, shard_id: str | None, moment: int, random: Random) -> bool:
        """Let half of what has arrived expire, or all of it; return whether there was any.

        Args:
            shard_id: Of which shard; None for each.
            moment: When, in milliseconds since the Unix epoch.
            random: Where chance comes from.
        """
        trimmed = False
        for shard in self._log.shards.values():
            arrived = shard.arrived(moment)
            if arrived and shard_id in {None, shard.shard_id}:
                number = shard.numbers[random.choice((arrived // 2, arrived - 1))]
                self.trimmed[shard.shard_id] = max(number, self.trimmed.get(shard.shard_id, 0))
                trimmed = True
        return trimmed

    def expire(self, before: int) -> list[str]:
        """Let whole shards expire; return those that are gone now.

        Args:
            before: By when a shard was closed that is gone, in milliseconds since the Unix epoch.
        """
        gone = [
            shard
            for shard in self._log.shards.values()
            if shard.closed_at(before) and shard.shard_id not in self.expired
        ]
        for shard in gone:
            assert shard.last is not None, "it is closed"
            self.expired[shard.shard_id] = None
            self.trimmed[shard.shard_id] = shard.last
        return [shard.shard_id for shard in gone]

    def cursor(
        self,
        run: ProcessRun,
        shard: SourceShard,
        position: Mapping[str, Any],
        moment: int,
        clock: int,
    ) -> int:
        """Return the number after which a starting position begins.

        Args:
            run: The process that begins there.
            shard: The shard.
            position: The position, as the API writes it.
            moment: When, in milliseconds since the Unix epoch.
            clock: What the service's clock says.

        Raises:
            ClientError: The shard has no such place, or no longer, or not yet.
            ValueError: The shard never had such a place.
        """
        trimmed = self.trimmed.get(shard.shard_id, shard.first)
        match position.get("Type"):
            case "TRIM_HORIZON":
                run.passed_over[shard.shard_id] = trimmed
                return trimmed
            case "AT_TIMESTAMP":
                asked = round(position["Timestamp"] * 1000)
                if asked > clock:
                    run.refused_times += 1
                    raise client_error("InvalidArgumentException", "SubscribeToShard")
                place = shard.arrived(asked)
                self._latest = max(self._latest, asked)
                run.passed_over[shard.shard_id] = trimmed
                return max(trimmed, shard.numbers[place - 1] if place else shard.first)
            case kind if kind in _NUMBERED:
                number = int(position["SequenceNumber"]) - int(kind == _AT)
                # A clock that is put back leaves readers at times that it has reported before.
                latest = max(moment, self._latest)
                newest = shard.last if shard.closed_at(moment) else shard.number_at(latest)
                assert newest is not None, "a closed shard has a last number"
                if not shard.first - 1 <= number <= newest:
                    raise ValueError(f"{shard.shard_id} was asked for a number that it never had")
                if number < trimmed:
                    raise client_error("InvalidArgumentException", "SubscribeToShard")
                return number
            case kind:
                raise ValueError(f"{shard.shard_id} was asked for the unknown position {kind!r}")
