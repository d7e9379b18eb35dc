"""The rate limits of the simulated service: calls, and bytes polled from a shard."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, final

from tests.support.kinesis.client_errors import client_error

if TYPE_CHECKING:
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.service.service_state import ServiceState

__all__ = ("RateLimits",)

_SECOND: Final = 1.0
# Calls a second for a stream, or for the whole account (API reference of each call).
_CALLS: Final = {
    "DescribeStreamSummary": 20,
    "ListShards": 1000,
    "RegisterStreamConsumer": 5,
    "DescribeStreamConsumer": 20,
    "DeregisterStreamConsumer": 5,
}


@final
class RateLimits:
    """Count calls and bytes, and refuse what is too much.

    Refusing a process that has not caused it is no violation of its.

    Args:
        state: The state of the service.
    """

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._calls: defaultdict[tuple[str, str], deque[tuple[float, int]]] = defaultdict(deque)
        self._free_at: dict[str, tuple[float, int]] = {}

    def call(self, run: ProcessRun, action: str) -> None:
        """Count a call about the stream.

        Args:
            run: The process that calls.
            action: The name of the call.

        Raises:
            ClientError: There were too many in the last second.
        """
        self._count(run, action, "the stream", _CALLS[action], "LimitExceededException")

    def poll(self, run: ProcessRun, action: str, shard_id: str) -> None:
        """Count a call about a shard, of GetRecords or GetShardIterator.

        Args:
            run: The process that calls.
            action: The name of the call.
            shard_id: The shard.

        Raises:
            ClientError: There were too many in the last second, or too many bytes were returned.
        """
        code = "ProvisionedThroughputExceededException"
        free_at, caller = self._free_at.get(shard_id, (0.0, 0))
        if action == "GetRecords" and self._state.now < free_at:
            if caller == run.number:
                self._state.violated(f"{shard_id} was polled for more than 2 MiB a second")
            raise client_error(code, action)
        self._count(run, action, shard_id, self._state.rules.polls_per_second, code)

    def returned(self, run: ProcessRun, shard_id: str, size: int) -> None:
        """Count what an answer returns: the shard refuses polls until its average is back.

        After an answer of 10 MiB that is for 5 seconds (API reference of GetRecords).

        Args:
            run: The process that is answered.
            shard_id: The shard.
            size: The bytes of data and keys.
        """
        free_at, _ = self._free_at.get(shard_id, (0.0, 0))
        rest = size / self._state.rules.polled_bytes_per_second
        self._free_at[shard_id] = max(free_at, self._state.now) + rest, run.number

    def _count(self, run: ProcessRun, action: str, about: str, limit: int, code: str) -> None:
        now, calls = self._state.now, self._calls[action, about]
        while calls and now - calls[0][0] >= _SECOND:
            calls.popleft()
        if len(calls) >= limit:
            if all(caller == run.number for _, caller in calls):
                self._state.violated(
                    f"{action} was called for {about} more than {limit} times a second"
                )
            raise client_error(code, action)
        calls.append((now, run.number))
