"""Leaders of a cluster's partitions, for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fanout.errors import OptionError
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from fanout.testing.kafka.cluster import KafkaCluster


def move_leaders(cluster: KafkaCluster, *topics: str) -> None:
    """Let other nodes lead, once their replicas are in sync; no node reports when they are."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            cluster.move_leaders(*topics)
        except OptionError as error:
            if "Kafka refused" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
