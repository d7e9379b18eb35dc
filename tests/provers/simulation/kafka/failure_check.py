"""Check that a stream over a simulated cluster failed only where it had to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from aiokafka.errors import (
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)

from fanout.errors import (
    FanOutError,
    MalformedEventError,
    ServiceError,
    SilentProducerError,
    SplitFailedError,
)
from fanout.kafka.partitions import Partition
from tests.provers.simulation.errors import OracleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.reading.kafka_options import KafkaOptions
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kafka.sent_responses import SentResponses
    from tests.provers.simulation.kafka.service import KafkaSimService

__all__ = ("check_kafka_failure",)

_PARTITION: Final = re.compile(r"[tu]-[0-9]+")
_DAMAGE_LIMIT: Final = 3
_UNKNOWN_LIMIT: Final = 40


def check_kafka_failure(
    failure: FanOutError,
    run: ProcessRun,
    sent_responses: SentResponses,
    service: KafkaSimService,
    options: KafkaOptions,
    *,
    silent: Callable[[Partition], bool],
    worked: bool,
) -> bool:
    """Check that a stream has failed of something that makes it fail.

    Args:
        failure: The error of the stream.
        run: The process.
        sent_responses: The responses that the cluster has sent to it.
        service: The cluster.
        options: The options of the user.
        silent: Returns whether a producer of a partition may have been silent for too long.
        worked: Whether its job has got anything.

    Returns:
        Whether no reader can go on.

    Raises:
        OracleError: If it has failed for nothing.
    """
    match failure:
        case SplitFailedError(__cause__=SilentProducerError()):
            found = _PARTITION.search(str(failure))
            late = found is not None and silent(Partition.of(found[0]))
            # Its user wants to look after the producers first.
            why, gone = "" if late else "no producer was silent", True
        case SplitFailedError():
            why, gone = _of_partition(failure, sent_responses, service, options, worked=worked)
        case ServiceError() if not run.opened:
            why, gone = _of_opening(failure, sent_responses, service)
        case _:
            why, gone = "it is of no kind that may happen", False
    if why:
        raise OracleError(f"failed for nothing: {failure} ({why})") from failure
    return gone


def _of_opening(
    failure: ServiceError, sent_responses: SentResponses, service: KafkaSimService
) -> tuple[str, bool]:
    """Return why a stream that could not be opened should have been, and whether it never can."""
    now, logs = service.now, service.cluster.logs.values()
    if "there is no" in str(failure):
        gone = any(log.era(now) is None for log in logs)
        for_good = any(log.eras[-1].until <= now for log in logs)
        return ("" if sent_responses.unseen or gone else "the topic is there"), for_good
    cause = failure.__cause__
    return ("" if sent_responses.knows(cause) else "no call was refused with its cause"), False


def _of_partition(
    failure: SplitFailedError,
    sent_responses: SentResponses,
    service: KafkaSimService,
    options: KafkaOptions,
    *,
    worked: bool,
) -> tuple[str, bool]:
    """Return why a stream should have gone on, and whether the next one fails of the same."""
    cause, found = failure.__cause__, _PARTITION.search(str(failure))
    if found is None:
        return "it names no partition", False
    partition = Partition.of(found[0])
    offset = sent_responses.asked.get(partition, 0)
    why, gone = "its cause passes", False
    match cause:
        case MalformedEventError():
            of_it = [n for (where, _), n in sent_responses.damaged.items() if where == partition]
            times = max(of_it, default=0)
            why, gone = "" if times >= _DAMAGE_LIMIT else f"it was damaged {times} times", True
        case OffsetOutOfRangeError() | UnknownTopicOrPartitionError():
            lost = service.cluster.logs[partition].lost(offset, sent_responses.since, service.now)
            why, gone = "" if lost and options.on_data_loss == "fail" else "nothing is lost", True
        case TopicAuthorizationFailedError():
            why = "it has worked" if worked else ""
        case UnknownError():
            times = sent_responses.refused[partition, offset, "UnknownError"]
            why = "" if times >= _UNKNOWN_LIMIT else f"it came {times} times"
        case _:
            pass
    return why, gone
