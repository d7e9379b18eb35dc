from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from fanout.errors import OptionError, SetupError, StreamStateError
from fanout.testing.kafka.broker import KafkaBroker
from fanout.testing.kafka.topics import Topics
from fanout.testing.ports import free_ports
from tests.support.groups import KAFKA
from tests.support.patience import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = KAFKA

QUICK = "-XX:TieredStopAtLevel=1"


def put(broker: KafkaBroker, topic: str, *values: bytes, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    failures: list[Any] = []
    for value in values:
        producer.produce(
            topic, value, key, partition=0, on_delivery=lambda error, _: failures.append(error)
        )
    assert producer.flush(PATIENCE) == 0
    assert failures == [None] * len(values)


@contextmanager
def consuming(broker: KafkaBroker) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def kept(broker: KafkaBroker, topic: str) -> tuple[int, int]:
    """The first offset that is kept, and the offset after the last."""
    with consuming(broker) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE)
        return low, high


def read(broker: KafkaBroker, topic: str) -> list[tuple[int, bytes]]:
    low, high = kept(broker, topic)
    found: list[tuple[int, bytes]] = []
    with consuming(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0, low)])
        while not found or found[-1][0] < high - 1:
            (message,) = consumer.consume(1, PATIENCE)
            assert message.error() is None
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert isinstance(value, bytes)
            found.append((offset, value))
    return found


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_broker_of_all_tests_keeps_what_is_put(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("kept")
    put(kafka_broker, "kept", b"a", b"b")
    assert read(kafka_broker, "kept") == [(0, b"a"), (1, b"b")]


def test_the_first_share_group_waits_for_no_topic_of_the_broker(mortal_broker: KafkaBroker) -> None:
    with consuming(mortal_broker) as consumer:
        assert (
            len(consumer.list_topics(timeout=PATIENCE).topics["__share_group_state"].partitions)
            == 4
        )


def test_a_topic_has_the_partitions_and_configurations_it_was_made_with(
    kafka_broker: KafkaBroker,
) -> None:
    kafka_broker.create_topic("made", 3, {"max.message.bytes": "16000000"})
    with consuming(kafka_broker) as consumer:
        assert len(consumer.list_topics("made", PATIENCE).topics["made"].partitions) == 3
    with pytest.raises(OptionError, match="already exists"):
        kafka_broker.create_topic("made")


def test_a_topic_grows(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("grown", 4)
    kafka_broker.grow_topic("grown", 6)
    with consuming(kafka_broker) as consumer:
        assert len(consumer.list_topics("grown", PATIENCE).topics["grown"].partitions) == 6
    with pytest.raises(OptionError, match="would not be an increase"):
        kafka_broker.grow_topic("grown", 5)


def test_a_topic_is_deleted_and_made_again(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("again")
    put(kafka_broker, "again", b"a")
    kafka_broker.delete_topic("again")
    with pytest.raises(OptionError, match="Unknown topic or partition"):
        kafka_broker.delete_topic("again")
    kafka_broker.create_topic("again")
    put(kafka_broker, "again", b"b")
    assert read(kafka_broker, "again") == [(0, b"b")]


def test_the_oldest_records_are_deleted(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("shortened")
    put(kafka_broker, "shortened", b"a", b"b", b"c")
    kafka_broker.delete_records("shortened", 0, 2)
    assert read(kafka_broker, "shortened") == [(2, b"c")]
    with pytest.raises(OptionError, match="out of range"):
        kafka_broker.delete_records("shortened", 0, 4)


def test_retention_acts_within_seconds(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("expiring", configs={"segment.ms": "1"})
    put(kafka_broker, "expiring", b"a", b"b")
    kafka_broker.alter_topic("expiring", {"retention.ms": "1"})
    eventually(lambda: kept(kafka_broker, "expiring")[0] == 2)


def test_a_configuration_that_kafka_does_not_know_is_refused(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("plain")
    with pytest.raises(OptionError, match=r"Unknown topic config name: retention\.seconds"):
        kafka_broker.alter_topic("plain", {"retention.seconds": "1"})


def test_compaction_acts_within_seconds(kafka_broker: KafkaBroker) -> None:
    configs = {
        "cleanup.policy": "compact",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "1",
    }
    kafka_broker.create_topic("compacted", configs=configs)
    for value in (b"a", b"b", b"c"):
        put(kafka_broker, "compacted", value, key=b"key")
    # The newest segment is never compacted.
    eventually(lambda: [value for _, value in read(kafka_broker, "compacted")] == [b"b", b"c"])


def test_a_transaction_is_committed(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("transactional")
    options: dict[str, Any] = {
        "bootstrap.servers": kafka_broker.bootstrap_servers,
        "transactional.id": "tests",
    }
    producer = Producer(options)
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce("transactional", b"a", partition=0)
    producer.commit_transaction(PATIENCE)
    # The marker of the commit takes an offset too.
    eventually(lambda: kept(kafka_broker, "transactional") == (0, 2))


@pytest.mark.long
def test_records_survive_a_kill_and_a_restart(mortal_broker: KafkaBroker) -> None:
    mortal_broker.create_topic("survivors")
    put(mortal_broker, "survivors", b"a", b"b")
    address, pid = mortal_broker.bootstrap_servers, mortal_broker.pid
    mortal_broker.kill()
    assert mortal_broker.pid is None
    mortal_broker.restart()
    assert mortal_broker.bootstrap_servers == address
    assert mortal_broker.pid not in (None, pid)
    assert read(mortal_broker, "survivors") == [(0, b"a"), (1, b"b")]


def starts_before_its_session_ends(broker: KafkaBroker) -> None:
    began = time.monotonic()
    broker.start()
    assert time.monotonic() - began < 25  # of 30 s


@pytest.mark.long
@pytest.mark.parametrize(
    "ends",
    [
        (KafkaBroker.kill,),
        (KafkaBroker.stop,),
        (KafkaBroker.kill, KafkaBroker.stop),
        (lambda broker: os.kill(broker.pid, signal.SIGKILL),),
    ],
    ids=["killed", "stopped", "stopped-when-killed", "killed-by-another"],
)
def test_an_ended_broker_is_let_in_again_before_its_session_ends(
    mortal_broker: KafkaBroker, ends: Sequence[Callable[[KafkaBroker], None]]
) -> None:
    for end in ends:
        end(mortal_broker)
    eventually(lambda: mortal_broker.pid is None)
    starts_before_its_session_ends(mortal_broker)


@pytest.mark.long
def test_one_that_was_killed_as_it_started_starts(mortal_broker: KafkaBroker) -> None:
    mortal_broker.kill()
    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(mortal_broker.start)
        eventually(lambda: mortal_broker.pid is not None)
        mortal_broker.kill()
        with pytest.raises(SetupError, match="ended as it started"):
            starting.result()
    starts_before_its_session_ends(mortal_broker)


@pytest.mark.long
def test_a_broker_begins_anew_in_a_second_block() -> None:
    broker = KafkaBroker()
    for _ in range(2):
        with broker:
            broker.create_topic("new")


def test_a_lone_broker_that_stands_still_for_seconds_is_not_missed(
    kafka_broker: KafkaBroker,
) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    configs = admin.describe_configs([resource])[resource].result(PATIENCE)
    assert int(configs["broker.session.timeout.ms"].value) == 30_000


@pytest.mark.long
def test_a_broker_that_was_started_again_leads_every_partition(mortal_broker: KafkaBroker) -> None:
    mortal_broker.create_topic("led", 200)
    mortal_broker.restart()
    with consuming(mortal_broker) as consumer:
        for number in range(200):
            consumer.get_watermark_offsets(TopicPartition("led", number), PATIENCE)
    mortal_broker.delete_topic("led")


def test_a_paused_broker_answers_when_it_is_resumed(mortal_broker: KafkaBroker) -> None:
    with consuming(mortal_broker) as consumer:
        consumer.list_topics(timeout=PATIENCE)
        mortal_broker.pause()
        try:
            with pytest.raises(KafkaException, match=r"_T(IMED_OUT|RANSPORT)"):
                consumer.list_topics(timeout=0.5)
        finally:
            mortal_broker.resume()
        consumer.list_topics(timeout=PATIENCE)


def test_a_killed_broker_that_is_asked_for_a_topic_does_not_answer(
    mortal_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.testing.kafka.topics._TIMEOUT", 0.1)
    mortal_broker.pause()
    try:
        with pytest.raises(StreamStateError, match="killed or paused"):
            mortal_broker.create_topic("late")
    finally:
        mortal_broker.resume()


def test_only_the_listeners_that_there_are_have_an_address(kafka_broker: KafkaBroker) -> None:
    assert kafka_broker.address("PLAINTEXT") == kafka_broker.bootstrap_servers
    with pytest.raises(OptionError, match="no listener 'OTHER'"):
        kafka_broker.address("OTHER")


@pytest.mark.long
def test_a_taken_port_is_left_to_who_has_it_and_nothing_is_left_of_a_closed_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid, directory, failing = 0, Path(), KafkaBroker(fast=True)

    def fail_within(taken: int) -> None:
        nonlocal pid, directory
        with failing:
            assert failing.bootstrap_servers != f"127.0.0.1:{taken}"
            pid, directory = failing.pid or 0, failing._node(1).server.directory
            assert QUICK not in Path(f"/proc/{pid}/cmdline").read_text()
            raise RuntimeError("of the caller")

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        choices = iter([[taken, *free_ports(1)], free_ports(2)])
        monkeypatch.setattr("fanout.testing.kafka.cluster.free_ports", lambda _: next(choices))
        with pytest.raises(RuntimeError, match="of the caller"):
            fail_within(taken)
    assert not runs(pid)
    assert not directory.exists()
    failing.close()
    with pytest.raises(StreamStateError, match="not running"):
        _ = failing.bootstrap_servers


def test_a_broker_is_compiled_quickly_unless_it_shall_be_fast(kafka_broker: KafkaBroker) -> None:
    assert QUICK in Path(f"/proc/{kafka_broker.pid}/cmdline").read_text()


@pytest.mark.long
def test_nothing_is_left_when_the_caller_is_killed_while_the_broker_stands_still() -> None:
    code = (
        "import json, sys; from fanout.testing.kafka.broker import KafkaBroker\n"
        "with KafkaBroker() as broker:\n"
        "    broker.pause()\n"
        "    print(json.dumps([broker.pid, str(broker._node(1).server.directory)]), flush=True)\n"
        "    sys.stdin.read()"
    )
    caller = subprocess.Popen(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with caller:
        assert caller.stdout is not None
        pid, directory = json.loads(caller.stdout.readline())
        assert runs(pid)
        caller.send_signal(signal.SIGKILL)
    eventually(lambda: not runs(pid) and not Path(directory).exists())


@pytest.mark.long
def test_a_broker_that_does_not_start_shows_its_log_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    broker = KafkaBroker(settings={"num.network.threads": "many"})
    with pytest.raises(SetupError, match=r"ended as it started(.|\n)*num\.network\.threads"):
        broker.__enter__()
    assert list(tmp_path.iterdir()) == []


def test_what_the_broker_decides_by_itself_is_no_setting() -> None:
    with pytest.raises(OptionError, match="settings has listeners, which the nodes decide"):
        KafkaBroker(settings={"listeners": "PLAINTEXT://127.0.0.1:9092"})
    with pytest.raises(OptionError, match="PLAINTEXT or CONTROLLER, which is there anyway"):
        KafkaBroker(listeners={"PLAINTEXT": "SSL"})


def test_a_damaged_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "fanout" / "kafka" / "4.3.1"
    (home / "libs").mkdir(parents=True)
    (home / "bootstrap.checkpoint").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SetupError) as caught, KafkaBroker():
        pass
    assert str(home) in str(caught.value)
    assert "Could not find or load main class kafka.Kafka" in str(caught.value)


def test_without_java_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SetupError, match="no Java found"), KafkaBroker():
        pass


def ready(servers: str, cluster: str, timeout: float) -> bool:
    return Topics(servers, lambda: [servers]).are_ready(cluster, {1}, timeout)


def test_the_broker_of_somebody_else_is_not_ours(kafka_broker: KafkaBroker) -> None:
    assert not ready(kafka_broker.bootstrap_servers, "another", PATIENCE)


def test_a_broker_that_is_not_there_is_not_ready() -> None:
    (port,) = free_ports(1)
    assert not ready(f"127.0.0.1:{port}", "cluster", 0.1)
