"""An argument of a wrong type is an error of the library, in every public function and class."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import fanout
from fanout import decoding, kafka, kinesis, metrics
from fanout.core.drain import Basket
from fanout.decoding import registry
from fanout.errors import FanOutError, OptionError, ServiceError
from fanout.kafka.writing.partitioner import to_batch
from fanout.kinesis.writing.entries import make_entries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

VALUES = (5, -1, 1.5, "text", "", None, b"x", [1], [object()], {1: 2}, object(), True, (1,), int)


class Unreachable:
    """A source that cannot be opened: what is refused before it is refused for its type."""

    decode = None
    event_time = None
    schema = pa.schema([("value", pa.binary())])

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[None]:
        del available_now
        raise ServiceError("it cannot be reached")
        yield


CLUSTER = kafka.Cluster("127.0.0.1:1", security=kafka.Security(protocol="PLAINTEXT"))
REGISTRY = decoding.SchemaRegistry("http://127.0.0.1:1")
RECORD = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
STREAM = "arn:aws:kinesis:us-east-1:123456789012:stream/a"
CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    fanout.Backoff: {},
    fanout.Committed: {},
    fanout.Cursor: {"sequence": 1},
    fanout.EventTime: {},
    fanout.Timestamp: {"millis": 1},
    fanout.Timestamp.at: {},
    fanout.Checkpoint.from_json: {},
    fanout.open: {"source": Unreachable()},
    fanout.resolve_start: {"source": Unreachable()},
    fanout.land: {"source": Unreachable()},
    fanout.followed: {"location": "none"},
    kafka.Cluster: {"servers": "127.0.0.1:1"},
    kafka.Security: {},
    kafka.ConsumerGroup: {"group_id": "a"},
    kafka.KafkaSource: {"cluster": CLUSTER, "topics": "a"},
    kafka.KafkaShareSource: {"cluster": CLUSTER, "topics": "a", "group_id": "g"},
    kafka.ShuffleSource: {"kafka": kafka.KafkaSource(cluster=CLUSTER, topics="a")},
    kafka.ShuffleWriterOptions: {"cluster": CLUSTER, "topic": "a"},
    kafka.producers_at: {},
    kinesis.KinesisSource: {"stream": "a", "consumer": "b"},
    kinesis.KinesisQueueSource: {"stream": "a", "queue": "q"},
    kinesis.LeaseTable: {"name": "a"},
    kinesis.iam_policy: {"stream_arn": STREAM},
    decoding.Avro: {"schema": RECORD},
    decoding.Json: {"schema": "a BIGINT"},
    decoding.Protobuf: {"descriptor": b"x"},
    decoding.SchemaRegistry: {"url": "http://127.0.0.1:1"},
    decoding.GlueSchemaRegistry: {},
    decoding.Json("a BIGINT").encode: {"records": pa.record_batch({"a": [1]})},
    REGISTRY.latest: {"subject": "a", "wait": 0},
    REGISTRY.id_of: {"subject": "a", "schema": "{}"},
    metrics.Metrics: {},
    metrics.Metrics().watch: {"stream": None},
    Basket: {"max_records": 1, "max_bytes": 1, "cursor": None},
    to_batch: {},
    make_entries: {},
}


def call(function: Callable[..., Any], **arguments: Any) -> None:
    """Call a public function, and do what its caller does with what it returns."""
    made = function(**arguments)
    if hasattr(made, "__aenter__") and not isinstance(made, fanout.Landing):
        asyncio.run(_entered(made))
    elif hasattr(made, "__anext__"):
        asyncio.run(anext(made))
    elif inspect.iscoroutine(made):
        asyncio.run(made)


async def _entered(context: Any) -> None:
    async with context:
        pass


@pytest.mark.parametrize("function", CALLS, ids=lambda each: each.__qualname__)
def test_a_value_of_a_wrong_type_is_an_error_of_the_library(
    function: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_may_pass", lambda _: False)
    valid = CALLS[function] | ({"location": "here"} if function is fanout.land else {})
    raised = []
    for name in inspect.signature(function).parameters:
        for value in VALUES:
            try:
                call(function, **{**valid, name: value})
            except FanOutError:
                pass
            except Exception as error:  # noqa: BLE001 - that is what must not come
                raised.append((name, value, error))
    assert raised == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tables": "delta"}, "tables must be a list of DeltaTable() and IcebergTable(...)"),
        ({"tables": [fanout.DeltaTable]}, "tables must be a list of DeltaTable() and "),
        ({"keep": 5}, "keep must be a timedelta, such as timedelta(days=7); it is of the type int"),
        ({"source": "kafka://t"}, "source must be a source, such as a KafkaSource or a "),
        ({"location": None}, "location must be a path or a URI, as text or a pathlib.Path; it is"),
    ],
)
async def test_an_error_names_the_argument_and_what_it_takes(
    arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionError) as caught:
        async with fanout.land(**{"source": Unreachable(), "location": "here", **arguments}):
            pass
    assert str(caught.value).startswith(says)


async def test_a_location_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source: Any = Unreachable()
    with pytest.raises(ServiceError):  # the location was accepted
        async with fanout.land(source, tmp_path / "landing", keep=timedelta(days=1)):
            pass
    assert (tmp_path / "landing").is_dir()
    with pytest.raises(OptionError, match="there is no landing at "):
        await anext(fanout.followed(tmp_path / "none"))
    assert str(decoding.SchemaRegistry("https://r", ca_file=tmp_path / "ca.pem")) == "https://r"
