"""The shuffle between the two queries of the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.kafka import Security
from fanout.spark import persistent_key_by

if TYPE_CHECKING:
    from fanout.demo.sources import ShuffleSettings
    from fanout.spark import PersistentKeyBy

__all__ = ("make_shuffle",)


def make_shuffle(settings: ShuffleSettings) -> PersistentKeyBy:
    """Return both sides, and create the topic unless the driver of the other side has done so."""
    return persistent_key_by(
        bootstrap_servers=settings.bootstrap_servers,
        security=Security(protocol="PLAINTEXT"),
        topic=settings.topic,
        partition_count=settings.partitions,
        retention=None,
        replication_factor=1,
        timestamp="timestamp",
    )
