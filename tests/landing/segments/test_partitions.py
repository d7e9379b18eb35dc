"""Directories of a landing by values of its records: their names, and which records are in them."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import UTC, date, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import CheckpointError, OptionError
from fanout.landers.land import land
from fanout.landing.segments import partitions
from fanout.landing.segments.partitions import escaped, partition_values, unescaped
from fanout.landing.storage.local_storage import LocalStorage
from tests.support.manual_source import SCHEMA
from tests.support.patience import PATIENCE
from tests.support.shaped_source import ShapedSource

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.log.followed import LandedEntry

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("%2FAb/=\0\u00e9 ")


async def landed(
    tmp_path: Path, kind: pa.DataType, values: list[Any], **options: Any
) -> LandedEntry:
    """Land an entry that has each of the values in a record, in its column `x`."""
    schema = pa.schema([*SCHEMA, ("x", kind)])
    source = ShapedSource(schema, x=lambda data: values[int(data)])
    options = {"max_wait": 0.0, **options}
    async with land(source, str(tmp_path / "landing"), **options) as landing:
        source.put(*(b"%d" % number for number in range(len(values))))
        return await anext(landing)


async def directories(tmp_path: Path, kind: pa.DataType, values: list[Any], by: str) -> Any:
    """Return the records of each directory, in their order in its file."""
    entry = await landed(tmp_path, kind, values, partition_by=by)
    found = {}
    for file in entry.files:
        table = await asyncio.to_thread(pq.read_table, file)
        inside = file.partition("/segments/")[2].rpartition("/")[0]
        found[inside] = [int(data) for data in table.column("data").to_pylist()]
    return found


@given(TEXTS)
def test_the_name_of_a_directory_keeps_each_text(text: str) -> None:
    name = escaped(text)
    assert unescaped(name) == text
    assert partition_values(f"segments/{escaped('a=b%')}={name}/run.parquet") == {"a=b%": text}
    assert not {*name} & {*"/=:\"#'*?\\{[]^\x00\x7f\n"}


@given(st.lists(TEXTS.filter(bool), unique=True, min_size=1, max_size=5))
def test_arrow_reads_the_names_as_they_were_meant(texts: list[str]) -> None:
    hive: Any = ds.partitioning(pa.schema([("x", pa.string())]), flavor="hive")
    for text in texts:
        (found,) = ds.get_partition_keys(hive.parse(f"x={escaped(text)}/a.parquet")).values()
        assert found == text


def test_what_hive_escapes() -> None:
    assert escaped("a/b 50% x=y \"q\" 'q' #?:*\\ {[]^ ü~|<>}\x00\n") == (
        "a%2Fb 50%25 x%3Dy %22q%22 %27q%27 %23%3F%3A%2A%5C %7B%5B%5D%5E ü~|<>}%00%0A"
    )


AT = datetime(2026, 11, 27, 8, 59, 59, 999000, UTC)
CASES: dict[str, tuple[pa.DataType, list[Any], str, dict[str, list[int]]]] = {
    "texts": (
        pa.string(),
        ["DE", None, "a/b", "DE", "null"],
        "x",
        {"x=DE": [0, 3], "x=__HIVE_DEFAULT_PARTITION__": [1], "x=a%2Fb": [2], "x=null": [4]},
    ),
    "large texts": (pa.large_string(), ["b", "a"], "x", {"x=a": [1], "x=b": [0]}),
    "integers": (
        pa.int64(),
        [2**63 - 1, -1, None, -1],
        "x",
        {"x=-1": [1, 3], "x=9223372036854775807": [0], "x=__HIVE_DEFAULT_PARTITION__": [2]},
    ),
    "booleans": (pa.bool_(), [True, False, True], "x", {"x=false": [1], "x=true": [0, 2]}),
    "dates": (
        pa.date32(),
        [date(1, 1, 1), date(9999, 12, 31)],
        "x",
        {"x=0001-01-01": [0], "x=9999-12-31": [1]},
    ),
    "days": (
        pa.timestamp("ms", "UTC"),
        [AT, None, datetime(1969, 12, 31, 23, 59, tzinfo=UTC), AT],
        "day(x)",
        {
            "x_day=1969-12-31": [2],
            "x_day=2026-11-27": [0, 3],
            "x_day=__HIVE_DEFAULT_PARTITION__": [1],
        },
    ),
    "hours": (
        pa.timestamp("ns", "Europe/Berlin"),
        [AT, None, datetime(1969, 12, 31, 23, 59, tzinfo=UTC)],
        "hour(x)",
        {
            "x_hour=1969-12-31-23": [2],
            "x_hour=2026-11-27-08": [0],
            "x_hour=__HIVE_DEFAULT_PARTITION__": [1],
        },
    ),
    "hours of any year": (
        pa.timestamp("us"),
        [-(2**63) + 1, 2**63 - 1, datetime(9999, 12, 31, 23, 59)],  # noqa: DTZ001
        "hour(x)",
        {"x_hour=0001-01-01-00": [0], "x_hour=9999-12-31-23": [1, 2]},
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_each_value_has_its_directory(tmp_path: Path, case: str) -> None:
    kind, values, by, expected = CASES[case]
    found = await directories(tmp_path, kind, values, by)
    assert found == expected
    assert [*found] == sorted(found)


async def test_parts_have_the_compression_of_each_column_of_their_segment(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field("data"), ("x", pa.int32())])
    source, random = ShapedSource(schema, x=lambda data: data[0] % 2), Random(7)
    async with land(
        source, str(tmp_path / "landing"), partition_by="x", compression="lz4", max_wait=0.0
    ) as landing:
        source.put(*(random.randbytes(100) for _ in range(100)))
        entry = await anext(landing)
    assert len(entry.files) == 2
    for file in entry.files:
        group = (await asyncio.to_thread(pq.read_metadata, file)).row_group(0)
        columns = [group.column(each) for each in range(group.num_columns)]
        found = {one.path_in_schema: one.compression for one in columns}
        assert found.pop("data") == "UNCOMPRESSED"
        assert {*found.values()} == {"LZ4"}


async def test_levels_of_directories_and_row_groups(tmp_path: Path) -> None:
    """Records of a partition keep their order, over the row groups of a segment."""
    schema = pa.schema([*SCHEMA, ("a.b", pa.int32()), ("at", pa.timestamp("ms", "UTC"))])
    source = ShapedSource(
        schema,
        **{"a.b": lambda data: int(data) % 3, "at": lambda data: int(data) % 2 * 86_400_000},
    )
    options: dict[str, Any] = {"partition_by": ["a.b", "day(at)", "hour(at)"], "max_records": 100}
    async with land(source, str(tmp_path), **options) as landing:
        for first in range(0, 100, 10):
            source.put(*(b"%d" % number for number in range(first, first + 10)))
        entry = await anext(landing)
    assert entry.rows == 100
    assert len(entry.files) == 6
    for number, file in enumerate(entry.files):
        b, day = divmod(number, 2)
        name = f"a.b={b}/at_day=1970-01-0{1 + day}/at_hour=1970-01-0{1 + day}-00"
        assert file == f"{tmp_path}/segments/{name}/run-000001-00000001.parquet"
        table = await asyncio.to_thread(pq.read_table, file)
        found = [int(data) for data in table.column("data").to_pylist()]
        assert found == [one for one in range(100) if (one % 3, one % 2) == (b, day)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a", ""], "a record has an empty text in the column x, which readers"),
        (["__HIVE_DEFAULT_PARTITION__"], "has the text __HIVE_DEFAULT_PARTITION__ in the column x"),
        (["a" * 254], "a text in the column x that is too long for the name of a directory"),
        (["ü" * 127], "a text in the column x that is too long"),
    ],
)
async def test_a_value_that_no_directory_keeps_ends_the_run(
    tmp_path: Path, values: list[str], words: str
) -> None:
    """Nothing of the segment is published, and the next run gets the same records."""
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"cannot be continued: .*{words}"):
            await landed(tmp_path, pa.string(), values, partition_by="x")
        files = (path for path in (tmp_path / "landing").rglob("*.parquet") if path.is_file())
        assert [*files] == []


async def test_the_longest_text_that_a_directory_keeps(tmp_path: Path) -> None:
    text = "ü" * 126 + "y"  # and "x=" before it
    assert await directories(tmp_path, pa.string(), [text], "x") == {f"x={text}": [0]}


async def test_too_many_partitions_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MAX_PARTITIONS", 3)
    assert len(await directories(tmp_path / "a", pa.int8(), [1, 2, 3], "x")) == 3
    with pytest.raises(CheckpointError, match="more than 3 directories by x; take a column"):
        await landed(tmp_path / "b", pa.int8(), [1, 2, 3, 4], partition_by="x")
    # Smaller files have fewer.
    entry = await landed(tmp_path / "b", pa.int8(), [1, 2, 3, 4], partition_by="x", max_records=2)
    assert len(entry.files) == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_files_are_published_at_the_same_time_and_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Whichever is refused, none is under way when the error is raised."""
    publish, lock, begun, most = LocalStorage.publish, threading.Lock(), list[str](), 0
    met = threading.Barrier(8)

    def observed(storage: LocalStorage, path: Path, name: str) -> None:
        nonlocal most
        with lock:
            begun.append(name)
            most = max(most, len(begun))
            number = next(numbers)
        if number < 16:
            met.wait(PATIENCE)
        if fails and number == 17:
            raise CheckpointError("refused")
        publish(storage, path, name)
        with lock:
            begun.remove(name)

    numbers = itertools.count()
    monkeypatch.setattr(LocalStorage, "publish", observed)
    values = [f"v{number:02}" for number in range(30)]
    if fails:
        with pytest.raises(CheckpointError, match="refused"):
            await landed(tmp_path, pa.string(), values, partition_by="x", max_wait=0.5)
        assert len(begun) == 1
    else:
        entry = await landed(tmp_path, pa.string(), values, partition_by="x", max_wait=0.5)
        assert len(entry.files) == 30
        assert entry.files == tuple(sorted(entry.files))
    assert most == 8


async def test_a_date_that_has_no_name_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a day in the column x that is before the year 1"):
        await landed(tmp_path, pa.date32(), [2**31 - 1], partition_by="x")


def columns(*more: Any) -> pa.Schema:
    return pa.schema([*SCHEMA, ("at", pa.timestamp("ms", "UTC")), ("x", pa.string()), *more])


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        (columns(), {"partition_by": "y"}, r"partition_by='y' must be a column with texts"),
        (columns(), {"partition_by": "data"}, "must be a column with texts, .*: .*sequence or x"),
        (columns(), {"partition_by": ["day(x)"]}, "must be a column with times: at"),
        (columns(), {"partition_by": ["month(at)"]}, "must be a column with texts"),
        (
            columns(),
            {"partition_by": ["week(at)"]},
            r", or day\(\) or hour\(\) of one .*: at$",
        ),
        (columns(), {"partition_by": 5}, "partition_by=5 must be the name of a column, or a list"),
        (columns(), {"partition_by": ["x", None]}, r"partition_by=\['x', None\] must be the name"),
        (columns(), {"partition_by": b"x"}, "partition_by=b'x' must be the name of a column"),
        (SCHEMA, {"partition_by": "day(at)"}, "must be a column with times: there is none"),
        (columns(), {"partition_by": ["x", "x"]}, "partition_by='x' is there twice"),
        (columns(("AT_day", pa.int8())), {"partition_by": "day(at)"}, "with a column 'AT_day'"),
        (columns(("X", pa.int8())), {"partition_by": "x"}, "not be given with a column 'X'"),
        (columns(("_y", pa.int8())), {"partition_by": "_y"}, "must not have the column '_y'"),
        (
            columns(),
            {"partition_by": "x", "partition_by_date": "at"},
            r"partition_by_date='at' must not be given with partition_by, which can have 'day\(at",
        ),
    ],
)
async def test_columns_that_make_no_directories(
    tmp_path: Path, schema: pa.Schema, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        async with land(ShapedSource(schema), str(tmp_path), **options):
            pass


async def test_a_column_that_is_named_like_a_day(tmp_path: Path) -> None:
    source = ShapedSource(columns(("day(at)", pa.string())), at=AT, x="", **{"day(at)": "y"})
    async with land(source, str(tmp_path), max_wait=0.0, partition_by="day(at)") as landing:
        source.put(b"0")
        (file,) = (await anext(landing)).files
    assert "/segments/day(at)=y/" in file


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"partition_by must be 'x and day\(at\)': .* directories by these"),
        ({"partition_by": ["day(at)", "x"]}, r"partition_by must be 'x and day\(at\)'"),
        ({"partition_by_date": "at"}, r"partition_by must be 'x and day\(at\)'"),
    ],
)
async def test_a_landing_goes_on_with_its_directories(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    async def run(**given: Any) -> None:
        source = ShapedSource(columns(), at=AT, x="y")
        async with land(source, str(tmp_path), max_wait=0.0, **given):
            pass

    for _ in range(2):
        await run(partition_by=["x", "day(at)"])
    with pytest.raises(OptionError, match=words):
        await run(**options)


async def test_a_new_column_that_is_named_like_a_day_of_before(tmp_path: Path) -> None:
    async def run(schema: pa.Schema) -> None:
        source = ShapedSource(schema, at=AT, x="", **{"day(at)": "y"})
        async with land(source, str(tmp_path), partition_by="day(at)"):
            pass

    await run(columns())
    wider = columns(("day(at)", pa.string()))
    with pytest.raises(OptionError) as caught:
        await run(wider)
    assert str(caught.value) == (
        f"partition_by='day(at)' is a new column by now, and {tmp_path} has files in directories "
        f"by the day of at: let decode give that column another name, or leave it out with "
        f"new_columns='ignore'"
    )


async def test_directories_after_none_and_after_dates(tmp_path: Path) -> None:
    async def run(name: str, **given: Any) -> None:
        source = ShapedSource(columns(), at=AT, x="y")
        async with land(source, str(tmp_path / name), max_wait=0.0, **given):
            pass

    await run("none")
    with pytest.raises(OptionError, match=r"partition_by='x' must be left out: .* one direct"):
        await run("none", partition_by="x")
    await run("dates", partition_by_date="at")
    with pytest.raises(OptionError, match=r"partition_by_date must be .at.: .* by date"):
        await run("dates", partition_by="day(at)")
