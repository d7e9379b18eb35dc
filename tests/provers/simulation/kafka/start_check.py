"""Where a stream begins that has stored nothing, held against where its user wants it to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.provers.simulation.kafka.oracle import KafkaOracle
    from tests.provers.simulation.kafka.partition_log import LogEra

__all__ = ("check_start",)


def check_start(oracle: KafkaOracle, offsets: Mapping[str, int], since: float) -> None:
    """Check where a stream begins: before all that is wanted, and not before what is not.

    Args:
        oracle: What is read, and from where.
        offsets: The first offset of each partition.
        since: When its process began, in virtual seconds.

    Raises:
        OracleError: If it begins elsewhere.
    """
    now = asyncio.get_running_loop().time()
    for partition, log in oracle.logs.items():
        offset, era = offsets.get(str(partition)), log.era(now)
        if offset is None or era is None or era is not log.era(since):
            continue  # it may have become another one in between
        first, last = _place(oracle, era, since), _place(oracle, era, now)
        if oracle.cluster.lags_between(partition, since, now):
            first = era.start(since)
        if not first <= offset <= last:
            raise OracleError(
                f"lost: {partition} begins at {offset}, and not between {first} and {last}"
            )


def _place(oracle: KafkaOracle, era: LogEra, now: float) -> int:
    """Return where a stream begins that asks at a moment."""
    committed = oracle.committed
    match oracle.start:
        case "earliest":
            return era.start(now)
        case "latest":
            return era.end(now, committed=committed)
        case "timestamp":
            found = era.at_time(EPOCH_MILLIS, now, committed=committed)
            return era.end(now, committed=committed) if found is None else found
