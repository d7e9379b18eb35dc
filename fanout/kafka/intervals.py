"""The intervals that the library keeps towards a Kafka cluster, in one place.

`fanout.testing.fast` shortens them for a broker of tests; no user option does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from fanout.core.intervals import Intervals


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaIntervals:
    """Seconds between calls about one partition. The defaults are for real clusters.

    Args:
        subscribe: The least time between two attempts, which bounds what errors cost: a broker asks
            for none.
        manual: The wait after an error that only a person can end, which takes minutes at least. A
            log that repeats itself every minute is read.
        loss_confirmed_after: How long the cluster has to report a topic or an offset as missing
            before it counts as lost. A controller takes about as long to announce a topic to all
            brokers, or to find a new leader.
        loss_checks_apart: The least time between two checks that count as two. A broker that has
            just started is asked many times in its first second, and may start twice in a row.
        topic_missing_after: How long the cluster has to report a topic as unknown before a writer
            fails. A broker that has just started may not know it yet.
    """

    subscribe: float = 0.1
    manual: float = 60.0
    loss_confirmed_after: float = 10.0
    loss_checks_apart: float = 2.0
    topic_missing_after: float = 5.0


KAFKA_INTERVALS: Final = Intervals(KafkaIntervals())
