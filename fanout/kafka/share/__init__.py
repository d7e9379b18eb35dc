"""Share groups of Kafka (KIP-932): records handed out one by one, to any number of members.

Needs the extras `kafka` and `share`. The client that it uses says of its share consumer that it
is in preview.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.kafka.share.source import KafkaShareSource

__all__ = ("KafkaShareSource",)

__getattr__, __dir__ = lazy_exports(__name__, {"KafkaShareSource": "fanout.kafka.share.source"})
