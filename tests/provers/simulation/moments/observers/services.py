"""Look at what the simulated service answers, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from fanout.core.statistics import SplitState
from fanout.errors import SubscriptionEndedError
from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.kinesis.service.consumers import KinesisConsumers
from tests.provers.simulation.kinesis.service.service import KinesisSimService
from tests.provers.simulation.kinesis.service.subscription_frames import SubscriptionFrames
from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.simulation.moments.observers.calls import after, before, together

if TYPE_CHECKING:
    from collections import Counter
    from contextlib import AbstractContextManager

    from fanout.kinesis.aws.api import ShardDescription
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.kinesis.service.pages import ShardPage
    from tests.provers.simulation.moments.observers.streams import StreamObservers

__all__ = ("ServiceObservers",)

# What is read so much later than it was written was not waited for, in seconds.
_LATE: Final = 60.0
_TAKEOVER: Final = 5.0


@final
class ServiceObservers:
    """Look at the service of one run.

    Args:
        moments: Counts what is met.
        streams: What looks at the streams that read it.
    """

    def __init__(self, moments: Counter[str], streams: StreamObservers) -> None:
        self._moments = moments
        self._streams = streams
        self._listed: dict[str, bool] = {}

    def installed(self) -> AbstractContextManager[None]:
        """Look for as long as the block runs."""
        return together(
            before(KinesisSimService, "strike_service", self._befalls),
            after(KinesisSimService, "list_shards", self._lists),
            before(KinesisConsumers, "admit", self._admits),
            before(KinesisConsumers, "begin", self._begins),
            after(SubscriptionFrames, "page", self._writes),
            before(SubscriptionFrames, "ends", self._ends),
        )

    def _befalls(self, _: KinesisSimService, fault: KinesisFault) -> None:
        """Look at what is about to happen to the stream."""
        if fault.kind not in {KinesisFaultKind.TAKEN_OVER, KinesisFaultKind.CONSUMER_GONE}:
            return
        gone = fault.kind is KinesisFaultKind.CONSUMER_GONE
        struck = [s for s in self._streams.subscribers if gone or fault.shard in {None, s.split.id}]
        states = [subscriber.state for subscriber in struck]
        self._moments[KinesisSometimes.CUT_TOGETHER] += states.count(SplitState.LIVE) > 1
        if gone:
            all_waiting = bool(states) and set(states) == {SplitState.BACKING_OFF}
            self._moments[KinesisSometimes.CONSUMER_GONE_BACKING_OFF] += all_waiting
        else:
            full = any(s.slot.occupied and s.state is SplitState.LIVE for s in struck)
            self._moments[KinesisSometimes.TAKEN_OVER_FULL] += full
            self._moments[KinesisSometimes.TAKEN_OVER_BACKING_OFF] += (
                SplitState.BACKING_OFF in states
            )

    def _lists(self, listed: list[ShardDescription], *_: object) -> None:
        """Hold a listing against the one before it."""
        ended = {shard.shard_id: shard.last is not None for shard in listed}
        self._moments[KinesisSometimes.OLD_LISTING] += not self._listed.keys() <= ended.keys()
        self._moments[KinesisSometimes.LIVED_BETWEEN_LISTINGS] += bool(self._listed) and any(
            ended[shard_id] and shard_id not in self._listed for shard_id in ended
        )
        self._listed = ended

    def _admits(
        self, consumers: KinesisConsumers, run: ProcessRun, arn: str, shard_id: str
    ) -> None:
        state = consumers._shard_state(arn, shard_id)
        early = _now() - state.succeeded_at < _TAKEOVER
        self._moments[KinesisSometimes.NEW_PROCESS_TOO_EARLY] += (
            early and 0 < state.succeeder < run.number
        )

    def _begins(self, consumers: KinesisConsumers, arn: str, body: SubscriptionFrames) -> None:
        live = consumers._shard_state(arn, body.shard.shard_id).live
        succeeds = live is not None and live.run.number < body.run.number
        self._moments[KinesisSometimes.TAKEN_OVER_BY_SUCCESSOR] += succeeds

    def _writes(self, page: ShardPage, _: SubscriptionFrames, at: float) -> None:
        if _now() - at >= _LATE and not page.records and page.continuation is not None:
            self._moments[KinesisSometimes.HEARTBEAT_READ_LATE] += 1

    def _ends(self, body: SubscriptionFrames, kind: type[Exception], *_: object) -> None:
        unread = _now() - body.expires >= _LATE
        self._moments[KinesisSometimes.OVER_UNREAD] += kind is SubscriptionEndedError and unread


def _now() -> float:
    return asyncio.get_running_loop().time()
