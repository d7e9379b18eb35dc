"""Pass as functions what is none, or what does not return its result."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

import fanout
from fanout.core.user_decode import BatchDecoder, UserDecode, check_decode, check_on_bad_record
from fanout.core.user_functions import check_function
from fanout.errors import (
    DecodeFailedError,
    EventTimeError,
    OptionError,
    SplitFailedError,
    UnwritableRecordError,
)
from fanout.kafka import Cluster, KafkaShareSource, KafkaSource, Security, open_writer
from fanout.kafka.protocol.broker_connection import TokenProvider
from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions
from fanout.kafka.writing.partitioner import checked
from fanout.kinesis import KinesisSource
from fanout.testing.virtual_time.loop import simulate
from tests.core.test_batch_decoder import EMPTY, PLACES, A, source
from tests.support.scripted_source import Break, FlakyError, Log, ScriptedSource
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

CLUSTER: Final = Cluster("localhost", security=Security(protocol="PLAINTEXT"))


async def asynchronous(*_: object) -> None:
    """Return nothing, in time."""


def generating(*_: object) -> Generator[None]:
    """Yield nothing."""
    yield


async def asynchronously_generating(*_: object) -> AsyncGenerator[None]:
    """Yield nothing, in time."""
    yield


class AsynchronousCall:
    """Is called as an async function is."""

    async def __call__(self, *_: object) -> None:
        """Return nothing, in time."""


class Methods:
    """Has methods of every kind."""

    async def asynchronous(self, *_: object) -> None:
        """Return nothing, in time."""

    def plain(self, records: Any) -> Any:
        """Return what it is given."""
        return records


NO_FUNCTIONS: Final = [
    asynchronous,
    partial(asynchronous, 1),
    generating,
    partial(generating, 1),
    asynchronously_generating,
    AsynchronousCall(),
    Methods().asynchronous,
    Methods,
    "text",
    7,
    [],
]
FUNCTIONS: Final = [print, lambda _: None, Methods().plain, partial(max, 1), pa.array]


def named(value: object) -> str:
    return getattr(value, "__name__", type(value).__name__)


async def _write(value: Any) -> None:
    async with open_writer(CLUSTER, "t", partitioner=value):
        pass


async def _listen(value: Any) -> None:
    async with fanout.open(ScriptedSource(logs=[]), on_resubscribe=value):
        pass


OPTIONS: Final[dict[str, Callable[[Any], object]]] = {
    "decode of kafka": lambda value: KafkaSource(cluster=CLUSTER, topics="t", decode=value),
    "decode of a share group": lambda value: KafkaShareSource(
        cluster=CLUSTER, topics="t", group_id="g", decode=value
    ),
    "decode of kinesis": lambda value: KinesisSource(stream="s", consumer="c", decode=value),
    "start of kafka": lambda value: KafkaSource(cluster=CLUSTER, topics="t", start=value),
    "start of kinesis": lambda value: KinesisSource(stream="s", consumer="c", start=value),
    "event_time": fanout.EventTime,
    "security": lambda value: Cluster("localhost", security=value),
    "key of a shuffle": lambda value: ShuffleWriterOptions(
        cluster=CLUSTER, topic="t", transactional_id_prefix="p", key=value
    ),
    "partitioner": lambda value: asyncio.run(_write(value)),
    "on_resubscribe": lambda value: asyncio.run(_listen(value)),
}
# A column has a name.
WITH_TEXTS: Final = {"event_time", "key of a shuffle"}


@pytest.mark.long
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("value", NO_FUNCTIONS, ids=named)
def test_an_option_that_is_a_function_says_at_once_what_it_must_be(
    option: str, value: object
) -> None:
    if isinstance(value, str) and option in WITH_TEXTS:
        return
    with pytest.raises(OptionError, match=r"must be|is not understood") as caught:
        OPTIONS[option](value)
    assert option.split(maxsplit=1)[0] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", FUNCTIONS, ids=named)
def test_a_function_is_one_however_it_is_made(value: object) -> None:
    check_function("decode", value, "a function")
    check_decode(value)


@pytest.mark.parametrize(
    "value", [generating, asynchronously_generating, AsynchronousCall, Methods, None, 7], ids=named
)
def test_a_function_for_bad_records_is_async(value: object) -> None:
    with pytest.raises(OptionError, match="must be 'fail', 'gap' or an async function"):
        check_on_bad_record(value, print)


@pytest.mark.parametrize("value", [partial(asynchronous, 1), AsynchronousCall()], ids=named)
def test_a_function_for_bad_records_is_one_however_it_is_made(value: object) -> None:
    check_on_bad_record(value, print)


def hidden(*_: object) -> Any:
    """Return a coroutine, although no one can see that it will."""
    return asynchronous()


@pytest.fixture
def _nothing_unawaited() -> Generator[None]:
    """Fail where Python warns of a coroutine that was never awaited."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(each.message) for each in caught if "never awaited" in str(each.message)] == []


@pytest.mark.long
@pytest.mark.usefixtures("_nothing_unawaited")
def test_a_coroutine_that_comes_back_is_an_error_that_names_it() -> None:
    with pytest.raises(DecodeFailedError, match="returned a coroutine; return a pyarrow"):
        UserDecode(hidden, EMPTY, PLACES)
    with pytest.raises(UnwritableRecordError, match="must return an array of partitions"):
        checked(hidden)(pa.array([b"key"]), 1)
    with pytest.raises(OptionError, match=r"must return a fanout\.kafka\.Security, not coroutine"):
        Cluster("localhost", security=hidden).load_security()

    async def read(stream_of: ScriptedSource, **options: Any) -> None:
        async with fanout.open(stream_of, random=Random(7), **options) as stream:
            await anext(stream)

    timed = ScriptedSource(
        logs=[Log(split=A, entries=(1,))], event_time=fanout.EventTime(column=hidden)
    )
    with pytest.raises(SplitFailedError) as caught:
        simulate(lambda: read(timed))
    assert isinstance(caught.value.__cause__, EventTimeError)
    assert "returned coroutine, not a pyarrow.Array" in str(caught.value)
    broken = ScriptedSource(logs=[Log(split=A, entries=(1,), faults=(Break(0, FlakyError()),))])
    with pytest.raises(SplitFailedError, match="on_resubscribe returned a coroutine, whose work"):
        simulate(lambda: read(broken, on_resubscribe=hidden))


async def test_a_token_that_is_not_awaited_is_an_error_that_is_not_tried_again() -> None:
    token: Any = lambda: "secret"  # noqa: E731 - a person may write so
    with pytest.raises(OptionError, match="token must be an async function") as caught:
        await TokenProvider(token).token()
    assert "secret" not in str(caught.value)


def exiting(*_: object) -> Any:
    """End the process, as a script does."""
    sys.exit("over")


ENDINGS: Final = [
    SystemExit("over"),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
]


@pytest.mark.parametrize("ending", ENDINGS, ids=named)
@pytest.mark.parametrize("on_bad", ["fail", "gap"])
def test_what_would_end_the_loop_in_decode_ends_the_stream_and_is_no_bad_record(
    ending: BaseException, on_bad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows:
            raise ending
        return records.append_column("double", pa.array([], pa.int64()))

    if isinstance(ending, KeyboardInterrupt):  # as in the thread of a query
        monkeypatch.setattr("fanout.core.user_functions.threading.main_thread", lambda: None)

    async def main() -> None:
        async with fanout.open(source(decode, on_bad)) as stream:
            await anext(stream)

    with pytest.raises(SplitFailedError, match="decode failed for a from sequence") as caught:
        simulate(main)
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__cause__ is ending


@in_virtual_time
async def test_a_function_for_bad_records_that_exits_ends_the_stream() -> None:
    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows:
            raise ValueError
        return records.append_column("double", pa.array([], pa.int64()))

    async def store(_: object) -> None:
        sys.exit("over")

    async with fanout.open(source(decode, store)) as stream:
        with pytest.raises(SplitFailedError, match="on_bad_record failed for 10 records of a"):
            await anext(stream)


@in_virtual_time
async def test_other_functions_that_exit_end_the_stream() -> None:
    timed = ScriptedSource(
        logs=[Log(split=A, entries=(1,))], event_time=fanout.EventTime(column=exiting)
    )
    async with fanout.open(timed) as stream:
        with pytest.raises(SplitFailedError, match="the function raised SystemExit"):
            await anext(stream)
    broken = ScriptedSource(logs=[Log(split=A, entries=(1,), faults=(Break(0, FlakyError()),))])
    async with fanout.open(broken, on_resubscribe=exiting) as stream:
        with pytest.raises(SplitFailedError, match="the function on_resubscribe raised SystemExit"):
            await anext(stream)


def test_a_decoder_is_made_of_a_function_that_returns_its_result() -> None:
    assert isinstance(source(Methods().plain).decode, BatchDecoder)
