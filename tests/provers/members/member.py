"""A member of a group in a process of its own: `python -m tests.provers.members.member NAME SPEC`.

It appends a line of JSON to NAME.log for each batch that it gets, for each whose position is
stored, and for each split that it is granted or that goes. The times are those of the event loop,
which all processes of a machine share. SIGTERM lets it leave in order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections import defaultdict, deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import fanout
from fanout.core.positions import reaches
from fanout.errors import FanOutError
from fanout.kafka import Cluster, ConsumerGroup, KafkaSource, Security
from fanout.kinesis import KinesisSource, LeaseTable

if TYPE_CHECKING:
    from fanout.core.membership import Group
    from fanout.core.positions import Position
    from fanout.core.source import Source

# How often the member looks which positions are stored, in seconds.
_LOOK: Final = 0.1
# Before it opens its stream again after an error, in seconds.
_AGAIN: Final = 1.0


@final
class _Journal(logging.Handler):
    """Write what happens to a file, a line at once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._batches = 0
        self._unstored: defaultdict[str, deque[tuple[int, Position]]] = defaultdict(deque)
        self.left_well = True
        logging.getLogger("fanout").addHandler(self)
        logging.getLogger("fanout.lifecycle").setLevel(logging.INFO)

    def write(self, **fields: Any) -> None:
        """Write a line with the time."""
        self._file.write(json.dumps({"time": asyncio.get_running_loop().time()} | fields) + "\n")

    def got(self, batch: fanout.Batch, column: str) -> None:
        """Write the keys and numbers of a batch."""
        records = [json.loads(value) for value in batch.records.column(column).to_pylist()]
        self.write(got=self._batches, split=batch.split.id, records=records)
        self._unstored[batch.split.id].append((self._batches, batch.range.until))
        self._batches += 1

    def stored(self, stream: fanout.FanOut) -> None:
        """Write which batches the service has stored the positions of."""
        splits = stream.statistics().splits
        for split, waiting in self._unstored.items():
            counted = splits.get(split)
            position = None if counted is None else counted.committed
            while waiting and position is not None and reaches(position, waiting[0][1]):
                self.write(stored=waiting.popleft()[0])

    def emit(self, record: logging.LogRecord) -> None:
        """Write what becomes of a split, and learn that the service did not hear of the end."""
        if record.getMessage().startswith("cannot leave"):
            self.left_well = False
        event = getattr(record, "event.name", "").removeprefix("fanout.split.")
        if event in ("granted", "handed_over", "lost"):
            split = getattr(record, "messaging.destination.partition.id", None)
            if event != "handed_over":
                self._unstored.pop(split, None)  # type: ignore[arg-type]
            self.write(event=event, split=split, complete=getattr(record, "fanout.complete", None))


def kafka(spec: dict[str, Any], _: str) -> tuple[Source, Group]:
    """Return a source and a group of Kafka."""
    cluster = Cluster(spec["servers"], security=Security(protocol="PLAINTEXT"))
    source = KafkaSource(cluster=cluster, topics=spec["topic"], start="earliest")
    return source, ConsumerGroup(group_id=spec["group"])


def kinesis(spec: dict[str, Any], name: str) -> tuple[Source, Group]:
    """Return a source and a lease table of Kinesis."""
    source = KinesisSource(
        stream=spec["stream"],
        consumer="members",
        start="TRIM_HORIZON",
        region=spec["region"],
        endpoint_url=spec["endpoint"],
        discovery_interval=spec["discovery"],
    )
    table = LeaseTable(
        name=spec["table"],
        worker=name,
        failover_time=spec["failover"],
        endpoint_url=spec["dynamodb"],
    )
    return source, table


async def run(name: str, spec: dict[str, Any], journal: _Journal) -> None:
    """Read until SIGTERM comes, and begin again after an error."""
    source, group = {"kafka": kafka, "kinesis": kinesis}[spec["service"]](spec, name)
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    journal.write(began=name)
    while not leaving.is_set():
        try:
            async with (
                fanout.open(source, group=group) as stream,
                asyncio.TaskGroup() as tasks,
            ):
                ending = tasks.create_task(_stop(stream, leaving))
                looking = tasks.create_task(_look(stream, journal))
                async for batch in stream:
                    if batch.num_records:
                        journal.got(batch, spec["column"])
                    with suppress(fanout.SplitLostError):
                        await stream.acknowledge(batch)
                ending.cancel()
                looking.cancel()
        except* FanOutError as errors:
            journal.write(failed=[f"{type(e).__name__}: {e}" for e in errors.exceptions])
            await asyncio.sleep(_AGAIN)
    journal.write(left=name, complete=journal.left_well)


async def _stop(stream: fanout.FanOut, leaving: asyncio.Event) -> None:
    await leaving.wait()
    stream.stop()


async def _look(stream: fanout.FanOut, journal: _Journal) -> None:
    while True:
        journal.stored(stream)
        await asyncio.sleep(_LOOK)


if __name__ == "__main__":
    spec = json.loads(sys.argv[2])
    journal = _Journal(Path(spec["directory"]) / f"{sys.argv[1]}.log")
    asyncio.run(run(sys.argv[1], spec, journal))
