"""Texts of a Kafka source quote no secret and no record.

`test_client_security.py` checks the DEBUG log of aiokafka against a broker with users.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from fanout import EventTime
from fanout.core.backoff import Backoff
from fanout.errors import OptionError
from fanout.kafka import KafkaSource, Security
from fanout.kafka.cluster import Cluster
from fanout.spark import KafkaSink
from tests.support.kafka.record_batches import BatchRow, batch, sealed
from tests.support.kafka.scripted_cluster import ScriptedCluster, ScriptedSource
from tests.test_secrets import DATA, KEY, SECRET_KEY, TOKEN, Output, drive, output

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("output",)

ROW = BatchRow(0, 1, KEY.encode(), DATA, ((KEY, DATA),))
GOOD = batch([ROW])
SECOND = batch([ROW], 1)
BROKEN = sealed(SECOND + b"more", base=1, flags=0, last=0)


def refuse(records: pa.RecordBatch) -> pa.RecordBatch:
    if records.num_rows and records["offset"][-1].as_py():
        raise ValueError("no")
    return records


def no_times(records: pa.RecordBatch) -> Any:
    return records["key"] if records["offset"][-1].as_py() else records["timestamp"]


@pytest.mark.fault("Errors and the log show everything but passwords and records")
@pytest.mark.parametrize(
    ("second", "options", "says"),
    [
        (SECOND[:-1] + b"x", {}, "checksum is wrong"),
        (BROKEN, {}, "break the format of records"),
        (batch([ROW] * 99, 1, codec="gzip"), {"max_event_bytes": 4000}, "more than max_event_"),
        (SECOND, {"decode": refuse}, "decode failed for t-0 from offset 0 to 1"),
        (SECOND, {"event_time": EventTime(no_times)}, "no event time"),
        (batch([ROW, ROW], 1), {}, "not in the order"),
    ],
)
async def test_a_record_that_ends_a_stream_is_not_quoted(
    output: Output, second: bytes, options: dict[str, Any], says: str
) -> None:
    cluster = ScriptedCluster()
    log = cluster.log()
    log.batches, log.end = [(0, 1, GOOD), (1, 2, second)], 2
    await drive(
        ScriptedSource(cluster, backoff=Backoff(base=0.01, cap=5.0), **options), output, records=9
    )
    assert says in str(output.errors[-1])
    output.check()


async def token() -> str:
    return TOKEN


async def refused_token() -> NoReturn:
    raise RuntimeError("no token")


@pytest.mark.fault("Errors and the log show everything but passwords and records")
@pytest.mark.parametrize(
    "secrets",
    [
        {"username": "me", "password": SECRET_KEY},
        {"username": "me", "password": SECRET_KEY, "mechanism": "PLAIN"},
        {"token": token},
        {"token": refused_token},
    ],
)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_a_cluster_that_cannot_be_reached_tells_no_secret(
    output: Output,
    unused_tcp_port: int,
    protocol: Any,
    secrets: dict[str, Any],
) -> None:
    security = Security(protocol=protocol, **secrets)
    cluster = Cluster(f"127.0.0.1:{unused_tcp_port}", security=security, connect_timeout=0.1)
    source = KafkaSource(cluster=cluster, topics="t")
    output.add(security, source.fetching, source.pacing, source.selection)
    await drive(source, output, records=1)
    assert "cannot be reached" in str(output.errors[0])
    output.check()


@pytest.mark.parametrize(
    "given",
    [
        {"protocol": "PLAINTEXT", "username": "me", "password": SECRET_KEY},
        {"token": token, "password": SECRET_KEY},
        {"mechanism": "PLAIN", "username": "me", "password": SECRET_KEY, "key_password": TOKEN},
        {"username": "me", "password": SECRET_KEY.encode()},
        {"protocol": "SSL", "key_password": TOKEN},
    ],
)
def test_a_mistake_in_the_options_tells_no_secret(output: Output, given: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        Security(**given)
    output.add_error(caught.value)
    output.check()


def test_a_function_that_returns_the_security_is_not_shown() -> None:
    # A partial shows its arguments.
    cluster = Cluster("broker:9093", security=partial(Security, username="a", password=SECRET_KEY))
    for holder in (
        cluster,
        KafkaSource(cluster=cluster, topics="orders"),
        KafkaSink(cluster=cluster, topic="orders"),
    ):
        assert SECRET_KEY not in repr(holder)
