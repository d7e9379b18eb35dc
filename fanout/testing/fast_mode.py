"""Shorten the intervals that the library keeps towards services, for tests."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from fanout.errors import SetupError
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("fast",)

# The least time between two calls that fail, so that no fault becomes a busy loop.
_SHORTEST: Final = 0.01


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
    with ExitStack() as stack:
        # A service whose extra is not installed has no streams.
        with suppress(SetupError):
            stack.enter_context(_fast_kinesis(rules or KinesisRules.fast()))
        with suppress(SetupError):
            stack.enter_context(_fast_kafka())
        yield


@contextmanager
def _fast_kinesis(rules: KinesisRules) -> Iterator[None]:
    from fanout.kinesis.intervals import (  # noqa: PLC0415 - it loads the AWS SDK
        KINESIS_INTERVALS,
        KinesisIntervals,
    )

    normal = KinesisIntervals()
    polls = {} if rules.polls_per_second else {"poll": _SHORTEST, "idle_poll": 2 * _SHORTEST}
    rests = {} if rules.polled_bytes_per_second else {"longest_rest": 0.0}
    shorter = KinesisIntervals(
        subscribe=max(min(rules.call_interval, normal.subscribe), _SHORTEST),
        takeover=min(rules.takeover_after, normal.takeover),
        manual=0.05,
        **polls,
        **rests,
    )
    with KINESIS_INTERVALS.replaced(shorter):
        yield


@contextmanager
def _fast_kafka() -> Iterator[None]:
    from fanout.kafka.intervals import (  # noqa: PLC0415 - it loads Kafka's client
        KAFKA_INTERVALS,
        KafkaIntervals,
    )

    shorter = KafkaIntervals(
        manual=0.1, loss_confirmed_after=1.0, loss_checks_apart=0.2, topic_missing_after=1.0
    )
    with KAFKA_INTERVALS.replaced(shorter):
        yield
