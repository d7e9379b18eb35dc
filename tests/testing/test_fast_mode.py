from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.kafka import KafkaSource, Security
from fanout.kafka.cluster import Cluster
from fanout.kinesis import KinesisSource
from fanout.testing import CutConnection, KinesisRules, KinesisServer, fast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.core.backoff import Pacing

pytestmark = pytest.mark.usefixtures("aws")


def kinesis(**options: Any) -> Pacing:
    return KinesisSource(stream="orders", consumer="etl", **options).pacing


def kafka() -> Pacing:
    security = Security(protocol="PLAINTEXT")
    return KafkaSource(cluster=Cluster("127.0.0.1:1", security=security), topics="orders").pacing


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KinesisServer]:
    with KinesisServer(replace(KinesisRules.fast(), max_event_records=1)) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.create_stream("orders")
        yield server


async def wait_after_a_cut(server: KinesisServer) -> float:
    """Return how long a stream waits after its first subscription was cut."""
    server.put_records("orders", [("key", b"1"), ("key", b"2")])
    server.inject(CutConnection(event=2))
    waits: asyncio.Queue[float] = asyncio.Queue()
    source = KinesisSource(
        stream="orders",
        consumer="etl",
        start="TRIM_HORIZON",
        backoff=fanout.Backoff(base=0.01),
    )
    opening = fanout.open(source, on_resubscribe=lambda _, __, delay: waits.put_nowait(delay))
    async with opening as stream:
        reading = asyncio.create_task(anext(stream))
        wait = await waits.get()
        await reading
        return wait


async def test_a_subscription_that_was_cut_is_opened_again_at_once(server: KinesisServer) -> None:
    with fast(server.rules):
        assert await wait_after_a_cut(server) < 0.1


async def test_outside_of_it_the_interval_of_the_service_is_kept(server: KinesisServer) -> None:
    with fast(server.rules):
        pass
    assert await wait_after_a_cut(server) > 4


def test_it_lasts_as_long_as_its_block() -> None:
    normal = kinesis(), kinesis(mode="polling"), kafka()
    with suppress(ZeroDivisionError), fast():
        assert kinesis().spacing == 0
        assert kafka().slow < 1
        raise ZeroDivisionError
    assert (kinesis(), kinesis(mode="polling"), kafka()) == normal


def test_of_two_blocks_the_inner_one_counts_until_it_ends() -> None:
    with fast(replace(KinesisRules.fast(), takeover_after=1.0)):
        with fast():
            assert kinesis().spacing == 0
        assert kinesis().spacing == 1


def test_it_is_no_faster_than_the_rules_of_the_server() -> None:
    normal = kinesis(), kinesis(mode="polling")
    with fast(KinesisRules()):
        assert replace(kinesis(), slow=normal[0].slow) == normal[0]
        assert replace(kinesis(mode="polling"), slow=normal[1].slow) == normal[1]


def test_no_fault_becomes_a_busy_loop() -> None:
    with fast():
        assert min(kinesis().floor, kinesis(mode="polling").floor, kafka().floor) >= 0.01


def test_the_options_of_a_source_stay_as_they_are() -> None:
    with fast():
        pacing = kinesis(backoff=fanout.Backoff(base=2.0, cap=9.0), discovery_interval=7.0)
    assert (pacing.backoff.base, pacing.backoff.cap, pacing.discovery_interval) == (2, 9, 7)


def test_it_holds_in_other_threads() -> None:
    found: list[float] = []
    with fast():
        thread = threading.Thread(target=lambda: found.append(kinesis().spacing))
        thread.start()
        thread.join()
    assert found == [0]


def test_the_fixture_is_the_same(fanout_fast: None) -> None:
    del fanout_fast
    assert kinesis().spacing == 0
