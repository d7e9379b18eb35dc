"""An idempotent producer for a broker that is killed while it writes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# A broker that was killed or paused is back long before, even on a busy machine.
_REQUEST_TIMEOUT_MS = 60_000
# Seconds for records in flight when a run ends early.
_GRACE = 5.0


@asynccontextmanager
async def open_producer(bootstrap_servers: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """Run a producer that repeats calls until the broker has stored each record exactly once."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        enable_idempotence=True,
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        **options,
    )
    try:
        await producer.start()
        yield producer
    finally:
        try:
            async with asyncio.timeout(_GRACE):
                await producer.stop()
        except TimeoutError:  # the broker is down, and records in flight are dropped
            await producer.client.close()
