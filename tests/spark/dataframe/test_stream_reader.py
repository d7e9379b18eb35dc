"""The reader as Spark's planner calls it, without Spark."""

from __future__ import annotations

import asyncio
import shutil
import traceback
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import IntegerType, StructField, StructType

import fanout
from fanout.core.sentence import Option
from fanout.errors import CheckpointError, OptionError
from fanout.landing.log import landed_log
from fanout.landing.log.entries import entry_name
from fanout.landing.retention import needed_by_readers
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage
from fanout.landing.storage.opening import open_files, open_known_storage
from fanout.spark.dataframe.data_source import LandingDataSource
from fanout.testing.s3_clients import BUCKET
from tests.spark.dataframe.landings import write_landing
from tests.support.manual_source import SCHEMA, ManualSource
from tests.support.retention import expire
from tests.support.s3 import moto as moto  # noqa: PLC0414 - a fixture
from tests.support.s3 import s3_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanout.spark.dataframe.readers import LandingStreamReader
    from tests.spark.dataframe.landings import FilledLanding

ALL = ReadAllAvailable()
NO_COLUMNS = StructType([])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landed_log, "_POLL_SECONDS", 0.0)


def reader(landing: FilledLanding, **options: str) -> LandingStreamReader:
    """Return the reader of a new planner process."""
    source = LandingDataSource({"landing": landing.location} | options)
    return source.streamReader(from_arrow_schema(SCHEMA))


def rows(reader: LandingStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the sequence numbers of a batch, read by workers."""
    partitions = reader.partitions(start, end)
    worker = sent(type(reader)(reader._options, reader._schema))
    return [
        sequence
        for partition in sent(partitions)
        for batch in worker.read(partition)
        for sequence in batch.column("sequence").to_pylist()
    ]


def sent(value: Any) -> Any:
    """Return what a worker gets."""
    serializer: Any = CPickleSerializer()
    return serializer.loads(serializer.dumps(value))


def place(offset: dict[str, Any]) -> tuple[int, int]:
    return offset["entry"], offset["row"]


def delete(landing: FilledLanding, *entries: int) -> None:
    for entry in entries:
        LocalStorage(landing.path).delete(entry_name(entry))


def test_a_batch_is_what_came_since_the_last_one(landing: FilledLanding) -> None:
    landing.put(25)
    one = reader(landing)
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    assert rows(one, start, first) == list(range(1, 26))
    assert one.latestOffset(first, ALL) == first
    landing.put(5)
    second = one.latestOffset(first, ALL)
    assert rows(one, first, second) == list(range(26, 31))
    assert rows(one, first, first) == []


def test_a_limit_divides_entries(landing: FilledLanding) -> None:
    landing.put(25)
    one = reader(landing, maxRecordsPerTrigger="8")
    assert one.getDefaultReadLimit() == ReadMaxRows(8)
    offset, batches = one.initialOffset(), []
    while place(end := one.latestOffset(offset, ReadMaxRows(8))) != place(offset):
        batches.append(rows(one, offset, end))
        offset = end
    assert batches == [[*range(1, 9)], [*range(9, 17)], [*range(17, 25)], [25]]
    assert rows(reader(landing), one.initialOffset(), offset) == landing.sequences()


def test_a_trigger_that_takes_all_passes_over_the_limit(landing: FilledLanding) -> None:
    landing.put(25)
    one = reader(landing, maxRecordsPerTrigger="8")
    start = one.initialOffset()
    assert rows(one, start, one.latestOffset(start, ALL)) == landing.sequences()


def test_a_limit_of_bytes_counts_those_of_files(landing: FilledLanding) -> None:
    (first, second) = landing.put(20)
    limit = first.bytes + second.bytes // 2
    one = reader(landing, maxBytesPerTrigger=str(limit))
    assert one.getDefaultReadLimit() == ReadMaxBytes(limit)
    start = one.initialOffset()
    assert place(one.latestOffset(start, ReadMaxBytes(limit))) in {(2, 4), (2, 5)}


def test_the_first_batch_is_replayed_from_where_it_began(landing: FilledLanding) -> None:
    landing.put(5)
    one = reader(landing, start="latest")
    start = one.initialOffset()
    landing.put(5)
    end = one.latestOffset(start, ALL)
    assert rows(one, start, end) == [6, 7, 8, 9, 10]
    landing.put(5)
    # Spark asks a new planner for the initial offset, and has the end in its checkpoint.
    again = reader(landing, start="latest")
    assert place(again.initialOffset()) != place(start)
    assert rows(again, again.initialOffset(), end) == [6, 7, 8, 9, 10]
    # The batch after it begins at the end of the first.
    assert rows(again, end, again.latestOffset(end, ALL)) == [11, 12, 13, 14, 15]


def test_a_first_batch_without_rows_is_replayed_without_rows(landing: FilledLanding) -> None:
    landing.put(5)
    one = reader(landing, start="latest")
    end = one.latestOffset(one.initialOffset(), ALL)
    landing.put(5)
    again = reader(landing, start="latest")
    assert rows(again, again.initialOffset(), end) == []
    assert rows(again, end, again.latestOffset(end, ALL)) == [6, 7, 8, 9, 10]


def test_available_now_ends_with_what_was_there(landing: FilledLanding) -> None:
    landing.put(15)
    one = reader(landing, maxRecordsPerTrigger="10")
    one.prepareForTriggerAvailableNow()
    landing.put(5)
    offset, read = one.initialOffset(), list[int]()
    while place(end := one.latestOffset(offset, ReadMaxRows(10))) != place(offset):
        read += rows(one, offset, end)
        offset = end
    assert read == list(range(1, 16))
    # A run that begins behind its target has nothing to read.
    assert one.latestOffset(end, ReadMaxRows(10)) == end


def test_old_planners_pass_no_start(landing: FilledLanding) -> None:
    """Spark 4.0 and 4.1 ask for the end alone; they show the newest offset at a restart."""
    landing.put(15)
    one = reader(landing, maxRecordsPerTrigger="10")
    first = one.latestOffset()
    assert rows(one, one.initialOffset(), first) == landing.sequences()
    assert one.latestOffset() == first
    landing.put(15)
    second = one.latestOffset()
    assert rows(one, first, second) == list(range(16, 26))
    again = reader(landing, maxRecordsPerTrigger="10")
    again.partitions(second, second)
    third = again.latestOffset()
    assert rows(again, second, third) == list(range(26, 31))
    assert again.latestOffset() == third
    # With Trigger.AvailableNow they ask before they show anything.
    last = reader(landing, maxRecordsPerTrigger="10", reader="daily", start="latest")
    assert rows(last, third, last.latestOffset()) == []
    assert needed_by_readers(LocalStorage(landing.path), 0) == 0  # all, until it is known


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", 1), ("latest", 16), ("0", 1), ("2", 11), ("3", 16)]
)
def test_a_query_begins_where_it_is_told(landing: FilledLanding, start: str, expected: int) -> None:
    landing.put(15)
    one = reader(landing, start=start)
    offset = one.initialOffset()
    landing.put(5)
    assert rows(one, offset, one.latestOffset(offset, ALL)) == list(range(expected, 21))


def test_a_new_query_begins_with_what_is_there_when_it_has_claimed_it(
    landing: FilledLanding,
) -> None:
    """The landing may delete entries between the look for the oldest one and the claim."""
    landing.put(25)
    one = reader(landing, reader="sessions", maxRecordsPerTrigger="8")
    start = one.initialOffset()
    delete(landing, 0, 1)
    end = one.latestOffset(start, ReadMaxRows(8))
    assert rows(one, start, end) == list(range(11, 19))
    again = reader(landing, reader="sessions")
    assert rows(again, again.initialOffset(), end) == list(range(11, 19))


def test_a_start_that_is_not_there_is_refused(landing: FilledLanding) -> None:
    landing.put(15)
    with pytest.raises(OptionError, match=r"start=9: the newest entry of .*landing is 2"):
        reader(landing, start="9").initialOffset()


def test_a_commit_says_what_is_still_needed(landing: FilledLanding) -> None:
    landing.put(25)
    storage = LocalStorage(landing.path)
    one = reader(landing, reader="sessions", maxRecordsPerTrigger="12")
    start = one.initialOffset()
    first = one.latestOffset(start, ReadMaxRows(12))
    assert needed_by_readers(storage, 0) == 0
    one.commit(first)
    assert needed_by_readers(storage, 0) == place(first)[0] == 2
    # A query that is started from an older checkpoint of Spark needs more again.
    again = reader(landing, reader="sessions")
    assert rows(again, start, first) == list(range(1, 13))
    assert needed_by_readers(storage, 0) == 0
    with pytest.raises(CheckpointError, match="another query took over the reader 'sessions'"):
        one.commit(one.latestOffset(first, ALL))


def test_a_reader_without_a_name_writes_nothing(landing: FilledLanding) -> None:
    landing.put(5)
    one = reader(landing)
    start = one.initialOffset()
    one.commit(one.latestOffset(start, ALL))
    assert not (landing.path / "readers").exists()


def test_entries_that_were_deleted_are_an_error(landing: FilledLanding) -> None:
    landing.put(25)
    one = reader(landing)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    expire(landing.path, 2)
    with pytest.raises(CheckpointError, match=r"the entries 0 to 1 of .* were deleted before this"):
        reader(landing).partitions(start, end)
    lax = reader(landing, failOnDataLoss="false")
    assert rows(lax, start, end) == list(range(11, 26))


def test_a_file_that_is_deleted_while_it_is_read_is_an_error(landing: FilledLanding) -> None:
    landing.put(5)
    for fail, one in (
        (True, reader(landing)),
        (False, reader(landing, failOnDataLoss="false")),
    ):
        start = one.initialOffset()
        (partition,) = one.partitions(start, one.latestOffset(start, ALL))
        (file,) = (landing.path / "segments").glob("*.parquet")
        content = file.read_bytes()
        file.unlink()
        if fail:
            with pytest.raises(CheckpointError, match=r"of entry 1 was deleted before this query"):
                list(one.read(partition))
        else:
            assert list(one.read(partition)) == []
        file.write_bytes(content)


def test_a_damaged_file_is_an_error(landing: FilledLanding) -> None:
    landing.put(5, compression="none")
    one = reader(landing)
    start = one.initialOffset()
    (partition,) = one.partitions(start, one.latestOffset(start, ALL))
    (file,) = (landing.path / "segments").glob("*.parquet")
    two, nine = b"\1\0\0\0" + b"2", b"\1\0\0\0" + b"9"
    content = file.read_bytes()
    assert content.count(two) == 1
    file.write_bytes(content.replace(two, nine))
    with pytest.raises(CheckpointError, match=r"cannot read .*segments/.* of entry 1: "):
        list(one.read(partition))


def test_the_checkpoint_of_another_landing_is_refused(
    landing: FilledLanding, tmp_path: Any
) -> None:
    landing.put(5)
    offset = reader(landing).initialOffset()
    other = type(landing)(tmp_path / "other")
    other.put(5)
    with pytest.raises(CheckpointError, match=r"belongs to another landing than .*other"):
        reader(other).latestOffset(offset, ALL)


def test_a_checkpoint_that_is_ahead_of_the_landing_is_refused(landing: FilledLanding) -> None:
    landing.put(15)
    one = reader(landing)
    end = one.latestOffset(one.initialOffset(), ALL)
    delete(landing, 2)
    with pytest.raises(CheckpointError, match=r"has read up to entry 3 of .*, and the newest one"):
        reader(landing).latestOffset(end, ALL)


@pytest.mark.parametrize("lax", ["true", "false"])
def test_a_batch_that_the_landing_no_longer_has_is_refused(
    landing: FilledLanding, lax: str
) -> None:
    """Spark plans a batch again that was not committed; meanwhile an older state was restored."""
    landing.put(25)
    one = reader(landing)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    delete(landing, 2, 3)
    again = reader(landing, failOnDataLoss=lax)
    with pytest.raises(CheckpointError, match=r"has read up to entry 4 of .*, .* there is 1: "):
        again.partitions(start, end)


def test_an_old_planner_does_not_go_back(landing: FilledLanding) -> None:
    """Spark 4.0 and 4.1 ask for the end alone, and would read entries twice from there on."""
    landing.put(25)
    one = reader(landing)
    start = one.latestOffset()
    delete(landing, 3)
    again = reader(landing)
    end = again.latestOffset()
    with pytest.raises(CheckpointError, match=r"has read up to entry 4 of .*, .* there is 2: "):
        again.partitions(start, end)


def test_a_landing_that_is_begun_again_is_noticed_at_once(landing: FilledLanding) -> None:
    landing.put(15)
    one = reader(landing)
    end = one.latestOffset(one.initialOffset(), ALL)
    shutil.rmtree(landing.path)
    landing.put(45)
    with pytest.raises(CheckpointError, match="was replaced by another one while this query read"):
        one.latestOffset(end, ALL)


def test_a_column_of_another_type_is_named_without_its_values(tmp_path: Path) -> None:
    table = pa.table({"shard": ["canary"], "sequence": [1], "data": [b"canary"]}, schema=SCHEMA)
    write_landing(tmp_path / "landing", table)
    source = LandingDataSource({"landing": str(tmp_path / "landing")})
    one = source.reader(StructType([StructField("shard", IntegerType())]))
    with pytest.raises(CheckpointError) as refused:
        list(one.read(one.partitions()[0]))
    assert str(refused.value) == (
        f"the column shard of entry 0 of {tmp_path}/landing is string, and not each value can be "
        f"int32: give .schema() the type that it has, and cast in the DataFrame"
    )
    assert "canary" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "has format version 2, and this library reads version 1"),
        ({"entry": -1}, r"has an offset that format\(\"fanout\"\) did not write"),
        ({"shard": 1}, r"did not write \(Object contains unknown field `shard`\)"),
    ],
)
def test_a_foreign_offset_is_refused(
    landing: FilledLanding, change: dict[str, Any], words: str
) -> None:
    landing.put(5)
    one = reader(landing)
    with pytest.raises(CheckpointError, match=words):
        one.latestOffset(one.initialOffset() | change, ALL)


def test_the_newest_place_and_the_lag_are_reported(landing: FilledLanding) -> None:
    landing.put(25)
    one = reader(landing, maxRecordsPerTrigger="8")
    assert one.reportLatestOffset() is None
    one.latestOffset(one.initialOffset(), ReadMaxRows(8))
    reported = one.reportLatestOffset()
    assert reported is not None
    assert (reported["entry"], reported["entriesBehind"]) == (4, 3)


CALLS = (
    "initialOffset",
    "prepareForTriggerAvailableNow",
    "latestOffset",
    "reportLatestOffset",
    "partitions",
    "commit",
    "read",
    "batch",
)


@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_the_storage_names_options(
    landing: FilledLanding, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    landing.put(15)
    one = reader(landing, reader="sessions")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    (partition, *_) = one.partitions(start, end)
    new = reader(landing) if call.startswith(("initial", "prepare")) else one
    landing.put(5)

    def refuses(*_: object, **__: object) -> None:
        raise CheckpointError(
            "cannot read: give ", Option("storage.region", text="the storage option region")
        )

    monkeypatch.setattr(LocalFiles, "read", refuses)
    monkeypatch.setattr(LocalFiles, "open", refuses)
    calls: dict[str, Callable[[], object]] = {
        "latestOffset": lambda: one.latestOffset(end, ALL),
        "partitions": lambda: one.partitions(start, end),
        "commit": lambda: one.commit(end | {"entry": 2}),
        "read": lambda: list(one.read(partition)),
        "batch": LandingDataSource({"landing": landing.location}).reader(NO_COLUMNS).partitions,
    }
    with pytest.raises(CheckpointError) as refused:
        calls.get(call, getattr(new, call, None))()  # type: ignore[misc]
    assert str(refused.value).endswith("give the option storage.region")


def test_row_groups_become_tasks(landing: FilledLanding, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.put(40, max_records=40)
    one = reader(landing)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert len(one.partitions(start, end)) == 1
    monkeypatch.setattr("fanout.spark.dataframe.row_groups._PARTITION_BYTES", 1)
    assert len(one.partitions(start, end)) == 4
    assert rows(one, start, end) == landing.sequences()
    monkeypatch.setattr("fanout.spark.dataframe.row_groups._BATCH_ROWS", 3)
    assert rows(one, end | {"entry": 1, "row": 14}, end) == list(range(15, 41))


@pytest.mark.long
async def test_a_landing_in_a_bucket_is_read_without_secrets_in_options(
    moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    location, source = f"s3://{BUCKET}/{uuid.uuid4().hex}", ManualSource()
    source.put(*(b"%d" % number for number in range(25)))
    options = s3_options(moto)
    async with fanout.land(
        source, location, available_now=True, max_records=10, storage_options=options
    ) as landing:
        assert [entry.rows async for entry in landing] == [10, 10, 5]
    chosen = {"storage.endpoint": moto, "storage.region": "us-east-1", "reader": "sessions"}
    await asyncio.to_thread(_read_a_bucket, location, chosen)


def _read_a_bucket(location: str, options: dict[str, str]) -> None:
    source = LandingDataSource({"landing": location} | options)
    one = source.streamReader(source.schema())
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(12))
    assert rows(one, start, end) == list(range(1, 26))
    one.commit(end)
    files = open_files(location, {"endpoint": options["storage.endpoint"], "region": "us-east-1"})
    assert needed_by_readers(files, 0) == place(end)[0]
    (partition, *_) = one.partitions(start, end)
    storage = open_known_storage(location, {"endpoint": options["storage.endpoint"]})
    for name in storage.walk("segments"):
        storage.delete(name)
    with pytest.raises(CheckpointError, match=r"s3://.*of entry 1 was deleted before this query"):
        list(one.read(partition))
