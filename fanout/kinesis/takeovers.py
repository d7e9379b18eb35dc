"""Warn of another process that reads with the same consumer."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from typing import Final, final

log = logging.getLogger(__name__)

# The service lets a subscription be taken over after 5 seconds. A new process that replaces an
# older one takes each shard over once or twice, while both of them run.
_TIMES: Final = 5
_SECONDS: Final = 300.0


@final
class Takeovers:
    """Warn once of a shard whose subscription others take over again and again."""

    def __init__(self, stream: str, consumer: str) -> None:
        self._stream = stream
        self._consumer = consumer
        self._warned = False
        self._times: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_TIMES))

    def count(self, shard_id: str) -> None:
        """Count a live subscription that another one has ended."""
        if self._warned:
            return
        times = self._times[shard_id]
        times.append(asyncio.get_running_loop().time())
        if len(times) < _TIMES or times[-1] - times[0] > _SECONDS:
            return
        self._warned = True
        self._times.clear()
        log.warning(
            "another process reads with the consumer %s: it has taken over the subscription to %s "
            "of the stream %s %d times within %.0f s. Copies do not share the shards of a "
            "consumer: each reads all of them, late, as they take the subscriptions from each "
            "other. Run one copy, and others that wait for a lock; or divide the shards with "
            "shards=; or give each copy a consumer of its own",
            self._consumer,
            shard_id,
            self._stream,
            _TIMES,
            times[-1] - times[0],
        )
