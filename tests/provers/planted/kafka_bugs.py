"""The reader of Kafka with one mistake in it, of which a person could make each."""

from __future__ import annotations

from typing import Final

from fanout.kafka.reading.commits import Committer
from fanout.kafka.reading.fetcher import _Broker
from fanout.kafka.reading.leaders import Leaders
from fanout.kafka.reading.losses import Losses
from fanout.kafka.reading.offsets import Places
from fanout.kafka.reading.partition_catalog import PartitionCatalog
from fanout.kafka.reading.record_batches import Aborts, raw_batches
from fanout.kafka.reading.records import _Part, _parts
from fanout.kafka.reading.subscription import PartitionReader, _Subscription
from tests.provers.planted.bugs import Change, Edit

__all__ = ("KAFKA_BUGS",)

KAFKA_BUGS: Final[dict[str, Change]] = {
    "a batch that begins early is not trimmed": (
        Edit(_Part._wanted, "wanted = offsets >= self.first_offset", "wanted = offsets >= 0"),
    ),
    "a transaction that is aborted has no end": (
        Edit(
            Aborts.leave_out,
            "                self._producers.discard(batch.producer_id)\n",
            "                pass\n",
        ),
    ),
    "a transaction is aborted for all of its producer's records": (
        Edit(
            Aborts.leave_out,
            "while self._ahead and self._ahead[-1].first_offset <= batch.base_offset:",
            "while self._ahead:",
        ),
    ),
    "aborted transactions are taken in the wrong order": (
        Edit(Aborts.__init__, "reverse=True", "reverse=False"),
    ),
    "aborted records are delivered": (
        Edit(_parts, "aborts is not None and aborts.leave_out(batch, partition)", "False"),
    ),
    "the marker of a transaction's end is delivered": (
        Edit(
            _parts,
            "if batch.control or left_out or",
            "if (left_out and not batch.control) or",
        ),
    ),
    "the position moves by the number of records": (
        Edit(
            _Part.add,
            "self.cover(batch.next_offset)",
            "self.cover(batch.base_offset + batch.rows)",
        ),
    ),
    "the position does not move over what is left out": (
        Edit(
            _parts,
            "                part.cover(batch.next_offset)\n                continue\n",
            "                continue\n",
        ),
    ),
    "a batch that is cut short is taken for damage": (
        Edit(
            raw_batches,
            "        if end > size:\n            return\n",
            "        if end > size:\n            raise MalformedEventError('cut short')\n",
        ),
    ),
    "checksums are not looked at": (Edit(raw_batches, "if crc32c(checked) != crc:", "if False:"),),
    "a truncation is taken for retention": (
        Edit(
            Losses._look_for_offset,
            "if start <= offset <= end:",
            "if start <= offset:",
        ),
    ),
    "a loss is declared on one broker's word": (
        Edit(
            Losses._sure,
            "return doubt.times >= _SURE_TIMES and now - doubt.since >= _SURE_AFTER",
            "return True",
        ),
    ),
    "what is left after a loss is skipped": (Edit(Losses._lost, "to = start if", "to = end if"),),
    "a leader that was known once is never doubted": (
        Edit(Leaders.doubt, "self._doubts[partition] = self._looks", "pass"),
    ),
    "a partition that had nothing is never asked again": (
        Edit(
            _Broker._choose,
            "if likely and len(likely) < len(asks) and now - self._all_asked_at < _SELDOM:",
            "if len(likely) < len(asks):",
        ),
    ),
    "a partition that appears later is read from its end": (
        Edit(PartitionReader._first_offset, "Edge.EARLIEST", "Edge.LATEST"),
    ),
    "an idle partition says nothing": (
        Edit(_Subscription.batches, "patience = HEARTBEAT", "patience = 1e9"),
    ),
    "partitions are listed only once": (
        Edit(
            PartitionCatalog.refresh,
            "        return await self._refresh()\n",
            "        return [\n"
            "            Partition(topic, number).split\n"
            "            for topic in sorted(self._topics)\n"
            "            for number in self._topics[topic]\n"
            "        ]\n",
        ),
    ),
    "what begins at the end begins at the beginning": (
        Edit(
            Places._look_up,
            "Edge.EARLIEST if isinstance(place, Horizon) else Edge.LATEST",
            "Edge.EARLIEST",
        ),
    ),
    "a partition asks without a reservation": (
        Edit(_Subscription._hold, "if nbytes > self._reserved:", "if False:"),
    ),
    "an offset is committed that is not acknowledged": (
        Edit(Committer.acknowledge, "next_offset(position)", "next_offset(position) + 1"),
    ),
    "a commit that fails is forgotten": (
        Edit(Committer._attempt, "            if left:\n", "            if False:\n"),
    ),
    "a commit that fails replaces a newer one": (
        Edit(
            Committer._attempt,
            "self._pending = {**left, **self._pending}",
            "self._pending = {**self._pending, **left}",
        ),
    ),
    "a partition whose commit is refused counts as committed": (
        Edit(
            Committer._attempt,
            "left = {partition: offsets[partition] for partition in refused}",
            "left = {}",
        ),
    ),
    "the last offsets are not committed at the end": (
        Edit(Committer.finish, "await self._commit_all()", "pass"),
    ),
}
