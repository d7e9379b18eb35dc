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
    """

    subscribe: float = 1.0  # the least time between two subscribe calls
    takeover: float = 5.0  # the least time from a successful subscribe call to the next call
    # The wait after an error that only a person can end. A person needs minutes at least, and a log
    # that repeats itself every minute is read.
    manual: float = 60.0
    poll: float = 0.2  # the least time between two calls about a polled shard
    # The most time between two calls about a polled shard that has nothing new. It is what the API
    # reference recommends, and leaves calls to other pollers.
    idle_poll: float = 1.0
    # The longest rest after an answer: the service refuses calls for 5 seconds after 10 MiB, the
    # largest answer.
    longest_rest: float = 5.0
    # How old the settings of a stream may become whose records the service distributes. A writer
    # makes one of the 20 calls a second for them that an account has.
    settings: float = 30.0


KINESIS_INTERVALS: Final = Intervals(KinesisIntervals())
