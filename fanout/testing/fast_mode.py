"""Shorten the intervals that the library keeps towards services, for tests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fanout.kafka.intervals import KAFKA_INTERVALS, KafkaIntervals
from fanout.kinesis.intervals import KINESIS_INTERVALS, KinesisIntervals
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import Iterator

# The least time between two calls that fail, so that no fault becomes a busy loop.
_SHORTEST: Final = 0.01

_KAFKA: Final = KafkaIntervals(
    manual=0.1, loss_confirmed_after=1.0, loss_checks_apart=0.2, topic_missing_after=1.0
)


@contextmanager
def fast(rules: KinesisRules | None = None) -> Iterator[None]:
    """Let every stream that is opened in the block retry as fast as a test's service allows.

    For tests only: the real Kinesis throttles a client that calls as often, and a real Kafka
    cluster of several brokers needs longer than this to agree on what exists. The change holds for
    the whole process, for threads too, until the block ends.

    It shortens, for Kinesis, the second between two subscribe calls, the 5 seconds after a
    subscribe call that succeeded, the time between two polls, and the rest after a large answer,
    each as far as `rules` allow; for Kafka the 10 seconds until missing records count as lost, and
    the 5 seconds until a writer's topic counts as missing, to a second; and for both the minute
    after an error that only a person can end.

    It leaves the options of a source as they are: `backoff` bounds the wait after a
    failure, and timeouts and `discovery_interval` hold as before.

    Args:
        rules: The rules of the embedded server that is read; None for `KinesisRules.fast()`, those
            of the fixture `kinesis_server`.
    """
    kinesis = _kinesis_intervals(rules or KinesisRules.fast())
    with KINESIS_INTERVALS.replaced(kinesis), KAFKA_INTERVALS.replaced(_KAFKA):
        yield


def _kinesis_intervals(rules: KinesisRules) -> KinesisIntervals:
    normal = KinesisIntervals()
    polls = {} if rules.polls_per_second else {"poll": _SHORTEST, "idle_poll": 2 * _SHORTEST}
    rests = {} if rules.polled_bytes_per_second else {"longest_rest": 0.0}
    return KinesisIntervals(
        subscribe=max(min(rules.call_interval, normal.subscribe), _SHORTEST),
        takeover=min(rules.takeover_after, normal.takeover),
        manual=0.05,
        settings=0.2,
        **polls,
        **rests,
    )
