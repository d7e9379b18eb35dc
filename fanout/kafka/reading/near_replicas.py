"""Know the replicas near the client that leaders have named, and leave those that fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.kafka.partitions import Partition

# How long a replica is used: Kafka's default of metadata.max.age.ms, after which the Java consumer
# fetches from the leader again.
_USED: Final = 300.0
# For how long leaders are not told the rack after a replica has failed: they go on naming it until
# the cluster misses it, after 9 s (`broker.session.timeout.ms`).
_WITHOUT_RACK: Final = 15.0


@final
class NearReplicas:
    """The replicas to be read instead of leaders, and the rack of which leaders are told."""

    def __init__(self, client_rack: str) -> None:
        self._client_rack = client_rack
        self._rack_told_from = 0.0
        self._replicas: dict[Partition, tuple[int, float]] = {}

    @property
    def rack(self) -> str:
        """The rack of the client as leaders are told now; empty for none."""
        return self._client_rack if _now() >= self._rack_told_from else ""

    def of(self, partition: Partition) -> int | None:
        """Return the replica to be read; None for the leader."""
        named = self._replicas.get(partition)
        if named is None:
            return None
        replica, until = named
        return replica if _now() < until else None

    def use(self, partition: Partition, replica: int) -> None:
        """Read the replica that a leader has named."""
        self._replicas[partition] = replica, _now() + _USED

    def leave(self, partitions: Iterable[Partition]) -> None:
        """Read from the leaders again, because a replica failed."""
        for partition in partitions:
            if self._replicas.pop(partition, None) is not None:
                self._rack_told_from = _now() + _WITHOUT_RACK


def _now() -> float:
    return asyncio.get_running_loop().time()
