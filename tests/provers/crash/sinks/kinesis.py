"""A stream of the embedded Kinesis, whose repeated records are found by their id."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, final

import boto3
import pyarrow as pa

from fanout.kinesis import read_deduplication_ids
from fanout.testing.kinesis.credentials import REGION
from tests.provers.crash.sinks.destination import ROWS, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fanout.testing.kinesis.process import KinesisProcess

__all__ = ("KinesisStream",)

_SHARDS: Final = 2
# A shard may be read five times a second.
_PAUSE: Final = 0.25


@final
class KinesisStream:
    """A stream that the AWS SDK reads, shard by shard.

    Args:
        server: The server itself, which outlives the front that the job writes to.
    """

    ordered = True

    def __init__(self, server: KinesisProcess) -> None:
        server.create_stream(ROWS, _SHARDS)
        self.location = ROWS
        self.environment: Mapping[str, str] = {}
        self.repeated = 0
        self._client = boto3.client(
            "kinesis",
            region_name=REGION,
            endpoint_url=server.endpoint_url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        shards = self._client.list_shards(StreamName=ROWS)["Shards"]
        self._read: dict[str, list[dict[str, Any]]] = {each["ShardId"]: [] for each in shards}
        self._iterators = {
            shard: self._client.get_shard_iterator(
                StreamName=ROWS, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            for shard in self._read
        }

    def rows(self) -> Iterable[Row]:
        """See `Destination.rows`: of the records with one id, the first is read."""
        while self._read_on():
            time.sleep(_PAUSE)
        found: set[bytes] = set()
        self.repeated = 0
        for number, row in self._records():
            # What it says is not compared: a reader by ids would lose another record of this id.
            if number in found:
                self.repeated += 1
                continue
            if number is not None:
                found.add(number)
            yield row

    def newest(self) -> None:
        """See `Destination.newest`."""

    def _read_on(self) -> bool:
        """Read what is new; return whether there is more."""
        behind = False
        for shard, iterator in self._iterators.items():
            answer = self._client.get_records(ShardIterator=iterator, Limit=10_000)
            self._iterators[shard] = answer["NextShardIterator"]
            self._read[shard] += answer["Records"]
            behind |= answer["MillisBehindLatest"] > 0
        return behind

    def _records(self) -> Iterator[tuple[bytes | None, Row]]:
        """Take the ids out of the records, as a reader of the library does."""
        for records in self._read.values():
            data = pa.RecordBatch.from_pydict({"data": [each["Data"] for each in records]})
            if not records:
                continue
            columns = read_deduplication_ids(data)
            both = (columns[name].to_pylist() for name in ("deduplicationId", "data"))
            for record, number, value in zip(records, *both, strict=True):
                yield number, Row(record["PartitionKey"].encode(), value)
