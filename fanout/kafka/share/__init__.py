"""Share groups of Kafka (KIP-932): queues whose records any member may receive.

They need the extras `kafka` and `share`. The share consumer of the client is in preview.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.kafka.share.source import KafkaShareSource

__all__ = ("KafkaShareSource",)

__getattr__, __dir__ = lazy_exports(__name__, {"KafkaShareSource": "fanout.kafka.share.source"})
