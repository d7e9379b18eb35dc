"""The intervals that Kinesis asks its clients to keep, in one place.

`fanout.testing.fast` shortens them for the embedded server; no user option does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from fanout.core.intervals import Intervals


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisIntervals:
    """Seconds between calls about one shard. The defaults are those of the real service.

    SubscribeToShard takes one call a second for each consumer and shard, and refuses a call within
    5 seconds of a successful one as ResourceInUse (AWS API reference). GetRecords and
    GetShardIterator take five calls of each in a second, and a shard returns 2 MiB a second to all
    of its pollers together.

    Args:
        subscribe: The least time between two subscribe calls.
        takeover: The least time from a successful subscribe call to the next call.
        manual: The wait after an error that only a person can end. A person needs minutes at
            least, and a log that repeats itself every minute is read.
        poll: The least time between two calls about a polled shard.
        idle_poll: The most time between two calls about a polled shard that has nothing new. It is
            what the API reference recommends, and leaves calls to other pollers.
        longest_rest: The longest rest after an answer: the service refuses calls for 5 seconds
            after 10 MiB, the largest answer.
    """

    subscribe: float = 1.0
    takeover: float = 5.0
    manual: float = 60.0
    poll: float = 0.2
    idle_poll: float = 1.0
    longest_rest: float = 5.0


KINESIS_INTERVALS: Final = Intervals(KinesisIntervals())
