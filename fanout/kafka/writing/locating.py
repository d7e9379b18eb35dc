"""Wait until every partition that is written to has a leader, or it is certain that none comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from fanout.errors import ServiceError, WriteTimeoutError
from fanout.kafka.writing.write_errors import refusal

if TYPE_CHECKING:
    from collections.abc import Collection

    from fanout.core.backoff import FullJitter
    from fanout.kafka.partitions import Partition
    from fanout.kafka.writing.topology import Topology

__all__ = ("locate", "timed_out")

# A broker that has just started may not have heard of a topic yet; after this time it does not
# exist.
_SURE_AFTER: Final = 5.0


async def locate(
    topology: Topology,
    partitions: Collection[Partition],
    *,
    deadline: float,
    jitter: FullJitter,
) -> None:
    """Ask the cluster until every partition has a leader.

    Args:
        topology: Where the leaders are noted.
        partitions: The partitions.
        deadline: When to give up, by the loop's clock.
        jitter: How long to wait between two attempts.

    Raises:
        ServiceError: A topic or partition does not exist, or the cluster refuses to tell.
        FanOutError: Another error that is final.
        WriteTimeoutError: There is still no leader at the deadline.
    """
    clock = asyncio.get_running_loop().time
    unknown_since = None
    attempts = 0
    while (error := await _look(topology, partitions)) is not None:
        final = refusal(error)
        if final is not None:
            raise final from error
        if not isinstance(error, UnknownTopicOrPartitionError):
            unknown_since = None
        elif unknown_since is None:
            unknown_since = clock()
        elif clock() - unknown_since >= _SURE_AFTER:
            raise ServiceError(
                f"the cluster has no such topic or partition: {error}; create it before it is "
                "written to"
            ) from error
        if clock() >= deadline:
            raise timed_out(error) from error
        await asyncio.sleep(jitter.delay(attempts))
        attempts += 1


def timed_out(error: Exception) -> WriteTimeoutError:
    """Return what is told when records were not confirmed in time."""
    return WriteTimeoutError(
        "the cluster did not confirm records within delivery.timeout.ms, the last attempt failed "
        f"by: {error}; see whether its brokers are up, or raise it"
    )


async def _look(topology: Topology, partitions: Collection[Partition]) -> KafkaError | None:
    try:
        await topology.refresh(partition.topic for partition in partitions)
    except KafkaError as error:
        return error
    errors = [topology.error(each) for each in partitions]
    # What is final comes first.
    return min(filter(None, errors), key=lambda error: bool(error.retriable), default=None)
