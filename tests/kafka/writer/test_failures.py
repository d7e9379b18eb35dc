"""Writers that are killed, fenced, cancelled or refused, and brokers that are killed."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

import fanout
from fanout.errors import (
    BatchNotWrittenError,
    FanOutError,
    FencedError,
    ServiceError,
    StreamStateError,
    UnwritableRecordError,
)
from fanout.kafka import Cluster, KafkaSource, TopicWriter, open_writer
from fanout.testing.virtual_time.cancellation import Cancellation, Moment
from tests.kafka.writer import read_process_write
from tests.kafka.writer.writers import rows, values, writing
from tests.support.kafka.brokers import create
from tests.support.kafka.permissions import grant, permission
from tests.support.kafka.topics import PLAINTEXT, Topic, eventually, new_topic
from tests.support.kafka.transacting import reported, transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.testing.kafka.broker import KafkaBroker
    from tests.kafka.secured import Secured

_EXPIRATION = "transactional.id.expiration.ms"

OPEN = """
import asyncio, sys
from fanout.kafka import Cluster, Security, open_writer

async def main():
    cluster = Cluster(sys.argv[1], security=Security(protocol="PLAINTEXT"))
    async with open_writer(cluster, sys.argv[2], transactional_id=sys.argv[3]) as writer:
        await writer.write([{"value": "lost"}] * 1000)
        await writer.flush()
        print("written", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def begun(*arguments: str) -> asyncio.subprocess.Process:
    """Start a Python process, and wait for its first line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline()
    return process


@pytest.mark.fault("A writer is killed in a transaction")
@pytest.mark.long
async def test_nothing_is_seen_of_a_writer_that_is_killed_in_a_transaction(
    kafka_broker: KafkaBroker,
) -> None:
    topic = (await new_topic(kafka_broker)).name
    process = await begun("-c", OPEN, kafka_broker.bootstrap_servers, topic, f"{topic}-writer")
    process.kill()
    await process.wait()
    assert len(await values(kafka_broker, topic, committed=False)) == 1000
    assert await values(kafka_broker, topic) == []
    # Readers go on as soon as the next writer is there.
    async with writing(kafka_broker, topic, transactional_id=f"{topic}-writer") as writer:
        await writer.write(rows("found"))
        await writer.commit()
    await reported(kafka_broker, f"{topic}-writer")
    assert await values(kafka_broker, topic) == [b"found"]


@pytest.mark.fault("An older writer goes on after a newer one")
async def test_an_older_writer_is_fenced_wherever_it_is(kafka_broker: KafkaBroker) -> None:
    topic = (await new_topic(kafka_broker)).name

    def opening() -> Any:
        return writing(kafka_broker, topic, transactional_id=f"{topic}-writer")

    async with opening() as older, opening() as newer:
        await newer.write(rows("newer"))
        await newer.commit()
        await older.write(rows("zombie"))
        for call in (older.flush, older.commit, older.commit):
            with pytest.raises(FencedError, match="a newer run has taken over"):
                await call()
        with pytest.raises(FencedError):
            await older.write(rows("zombie"))
    async with opening() as written:
        await written.write(rows("zombie"))
        await written.flush()
        async with opening() as newest:
            with pytest.raises(FencedError, match=f"a newer writer has taken over {topic}-writer"):
                await written.commit()
            await newest.write(rows("newest"))
            await newest.commit()
    await reported(kafka_broker, f"{topic}-writer")
    assert await values(kafka_broker, topic) == [b"newer", b"newest"]


@pytest.mark.fault("A transaction is open for too long")
async def test_a_transaction_that_takes_too_long_is_an_error_and_the_next_writer_goes_on(
    kafka_broker: KafkaBroker,
) -> None:
    topic = (await new_topic(kafka_broker)).name
    id_ = f"{topic}-writer"
    async with (
        writing(kafka_broker, topic, transactional_id=id_, transaction_timeout=4.0) as writer,
        transactions(kafka_broker) as calls,
    ):
        await writer.write(rows("late"))
        await writer.flush()
        while not (await calls.describe(id_)).settled:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # only the broker knows when
        with pytest.raises(BatchNotWrittenError, match=r"expired before it was committed.* 4 s"):
            await writer.commit()
    async with writing(kafka_broker, topic, transactional_id=id_) as writer:
        await writer.write(rows("again"))
        await writer.commit()
    await reported(kafka_broker, id_)
    assert await values(kafka_broker, topic) == [b"again"]


async def test_a_transaction_that_another_process_aborts_is_told_as_that(
    kafka_broker: KafkaBroker,
) -> None:
    topic = (await new_topic(kafka_broker)).name
    id_ = f"{topic}-writer"
    async with (
        writing(kafka_broker, topic, transactional_id=id_) as writer,
        transactions(kafka_broker) as calls,
    ):
        await writer.write(rows("aborted"))
        await writer.flush()
        description = await calls.describe(id_)
        assert description is not None
        assert description.incarnation is not None
        await calls.abort(id_, description.incarnation)  # as `fanout transactions abort` does
        with pytest.raises(BatchNotWrittenError, match="another process has aborted the transacti"):
            await writer.commit()
    async with writing(kafka_broker, topic, transactional_id=id_) as writer:
        await writer.write(rows("again"))
        await writer.commit()
    await reported(kafka_broker, id_)
    assert await values(kafka_broker, topic) == [b"again"]


@pytest.mark.long
@pytest.mark.parametrize("positions", [False, True], ids=["records", "positions alone"])
async def test_a_transactional_id_that_brokers_have_deleted_is_named(
    start_kafka_broker: Callable[..., KafkaBroker],
    positions: bool,  # noqa: FBT001 - a parameter
) -> None:
    interval = {"transaction.remove.expired.transaction.cleanup.interval.ms": "500"}
    broker = await asyncio.to_thread(start_kafka_broker, settings=interval)
    topic = (await new_topic(broker)).name
    cluster = Cluster(broker.bootstrap_servers, security=PLAINTEXT)
    source = KafkaSource(cluster=cluster, topics=topic)
    async with (
        writing(broker, topic, transactional_id="idle") as writer,
        transactions(broker) as calls,
    ):
        checkpoint = fanout.Checkpoint.from_json(await writer.positions(source))
        await writer.write(rows("before"))
        await writer.commit()
        await reported(broker, "idle")  # a lone broker that is killed before may lose the markers
        await asyncio.to_thread(broker.restart, {_EXPIRATION: "1000"})
        while (await calls.describe("idle")).incarnation is not None:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # only the broker knows when
        moved = replace(checkpoint.splits[f"{topic}-0"], position=fanout.Cursor(7))
        if positions:
            going_on = writer.commit(replace(checkpoint, splits={f"{topic}-0": moved}))
        else:
            await writer.write(rows("refused"))
            going_on = writer.flush()
        with pytest.raises(BatchNotWrittenError, match=r"transactional\.id\.expiration\.ms"):
            await going_on
    await asyncio.to_thread(broker.restart, {_EXPIRATION: "604800000"})
    async with writing(broker, topic, transactional_id="idle") as writer:
        await writer.write(rows("again"))
        await writer.commit()
    await reported(broker, "idle")
    assert await values(broker, topic) == [b"before", b"again"]


@pytest.mark.fault("A broker is killed while records are written, and comes back")
@pytest.mark.long
@pytest.mark.parametrize("transactional", [False, True])
async def test_a_broker_that_is_killed_and_comes_back_has_each_record_once_in_order(
    mortal_broker: KafkaBroker, *, transactional: bool
) -> None:
    topic = (await new_topic(mortal_broker)).name
    given = [b"%d-" % number + bytes(500) for number in range(20_000)]
    options = {"transactional_id": f"{topic}-writer"} if transactional else {}
    async with writing(mortal_broker, topic, batch_size=100_000, **options) as writer:
        deliveries = []
        for begin in range(0, len(given), 5_000):
            deliveries.append(await writer.write(rows(*given[begin : begin + 5_000])))
            if begin == 5_000:
                await asyncio.to_thread(mortal_broker.restart)
        places = [place for delivery in deliveries for place in await delivery.confirmed()]
        if transactional:
            await writer.commit()
    if transactional:
        await reported(mortal_broker, f"{topic}-writer")
    assert sum(place.rows for place in places) == len(given)
    assert await values(mortal_broker, topic) == given


@pytest.mark.fault("A broker is killed while records are written, and comes back")
@pytest.mark.long
async def test_a_job_goes_on_through_the_restart_of_its_broker(
    mortal_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = await new_topic(mortal_broker), await new_topic(mortal_broker)
    await asyncio.to_thread(source.put, 1_000)
    id_ = f"{target.name}-job"
    commit, commits = TopicWriter.commit, 0

    async def commit_restarting(self: TopicWriter, drained: Any) -> None:
        nonlocal commits
        if (commits := commits + 1) == 3:
            await reported(mortal_broker, id_)  # a lone broker may lose its markers
            await self.flush()
            await asyncio.to_thread(mortal_broker.restart)
        await commit(self, drained)

    monkeypatch.setattr(TopicWriter, "commit", commit_restarting)
    await read_process_write.run(mortal_broker.bootstrap_servers, source.name, target.name, id_)
    await reported(mortal_broker, id_)
    assert commits > 3
    assert await values(mortal_broker, target.name) == [b"%d" % n for n in range(1_000)]


async def killed_jobs(broker: KafkaBroker, records: int, kills: int, seed: int) -> None:
    """Kill a job that reads and writes at drawn moments; at its end each record is there once."""
    source = await asyncio.to_thread(Topic, broker, partitions=2)
    target = await new_topic(broker)
    for partition in (0, 1):
        await asyncio.to_thread(source.put, records, partition=partition)
    random, id_ = Random(seed), f"{target.name}-job"
    module = read_process_write.__name__
    job = ("-m", module, broker.bootstrap_servers, source.name, target.name, id_)
    for _ in range(kills):
        process = await begun(*job)
        await asyncio.sleep(random.uniform(0.0, 0.3))
        if process.returncode is None:
            process.kill()
        await process.wait()
    process = await begun(*job)
    assert await process.wait() == 0
    await reported(broker, id_)
    found = [int(value) for value in await values(broker, target.name) if value is not None]
    assert len(found) == 2 * records
    for partition in (0, 1):  # each in its order
        of_partition = [int(value) for _, value in source.log[partition] if value is not None]
        assert [value for value in found if value in set(of_partition)] == of_partition


@pytest.mark.fault("A job that reads, processes and writes is killed at any moment")
@pytest.mark.long
async def test_a_job_that_is_killed_counts_each_record_once(kafka_broker: KafkaBroker) -> None:
    await killed_jobs(kafka_broker, records=1_000, kills=2, seed=1)


@pytest.mark.fault("A job that reads, processes and writes is killed at any moment")
@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
async def test_a_job_that_is_killed_many_times_counts_each_record_once(
    kafka_broker: KafkaBroker, seed: int
) -> None:
    await killed_jobs(kafka_broker, records=5_000, kills=12, seed=seed)


@pytest.mark.fault("A task is cancelled while it writes or commits")
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", Moment)
async def test_a_job_that_is_cancelled_at_any_await_counts_each_record_once(
    kafka_broker: KafkaBroker, moment: Moment
) -> None:
    source, target = await new_topic(kafka_broker), await new_topic(kafka_broker)
    id_ = f"{target.name}-job"
    step, beyond = 0, False
    while not beyond:
        step += 1
        await asyncio.to_thread(source.put, 2)
        cancellation = Cancellation(step, moment)
        async with writing(kafka_broker, target.name, transactional_id=id_) as writer:
            await cancellation.run(process(source, writer))
            try:
                # What was cancelled is finished, or is begun anew.
                await process(source, writer)
            except StreamStateError:
                await writer.abort()
                await process(source, writer)
        beyond = cancellation.beyond
    await reported(kafka_broker, id_)
    assert step > 10
    assert await values(kafka_broker, target.name) == [b"%d" % n for n in range(2 * step)]


async def process(source: Topic, writer: TopicWriter) -> None:
    """Write what is left of a topic, and commit."""
    reading = source.source(stop="latest")
    resume = await writer.positions(reading)
    async with fanout.open(reading, resume=resume) as stream:
        while (drained := await stream.drain(max_records=1)).batches:
            for batch in drained.batches:
                await writer.write(batch.records.select(["value"]))
            await writer.commit(drained)


@pytest.mark.fault("A task is cancelled while it writes or commits")
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", Moment)
async def test_what_is_written_after_a_commit_that_was_cancelled_is_committed_by_the_next(
    kafka_broker: KafkaBroker, moment: Moment
) -> None:
    topic = (await new_topic(kafka_broker)).name
    id_ = f"{topic}-writer"
    step, beyond = 0, False
    async with writing(kafka_broker, topic, transactional_id=id_) as writer:
        while not beyond:
            step += 1
            cancellation = Cancellation(step, moment)
            await writer.write(rows(f"{step}-before"))
            await cancellation.run(writer.commit())
            await writer.write(rows(f"{step}-after"))
            await writer.commit()
            beyond = cancellation.beyond
    await reported(kafka_broker, id_)
    assert step > 3
    assert await values(kafka_broker, topic) == [
        b"%d-%s" % (n, when) for n in range(1, step + 1) for when in (b"before", b"after")
    ]


@pytest.mark.fault("A task is cancelled while it writes or commits")
async def test_a_cancelled_write_is_not_committed_in_part(kafka_broker: KafkaBroker) -> None:
    topic = (await new_topic(kafka_broker)).name
    id_ = f"{topic}-writer"
    async with writing(kafka_broker, topic, transactional_id=id_, buffer_memory=1) as writer:
        await (await writer.write(rows("first"))).confirmed()
        await writer.commit()
        await asyncio.to_thread(kafka_broker.pause)
        try:
            # The second batch of the write has to wait for the first.
            part = [{"value": bytes(600_000)}, {"value": bytes(600_000)}]
            writing_ = asyncio.create_task(writer.write(part))
            await eventually(lambda: writer._writer.queued > 1)
            writing_.cancel()
            await asyncio.wait([writing_])
        finally:
            await asyncio.to_thread(kafka_broker.resume)
        with pytest.raises(StreamStateError, match="a write was cancelled in the middle"):
            await writer.commit()
        await writer.abort()
        await writer.write(rows("whole"))
        await writer.commit()
    await reported(kafka_broker, id_)
    assert await values(kafka_broker, topic) == [b"first", b"whole"]


@pytest.mark.long
@pytest.mark.usefixtures("fanout_fast")
@pytest.mark.parametrize("transactional", [False, True])
async def test_what_is_refused_at_once_leaves_the_writer_as_it_was(
    kafka_broker: KafkaBroker, *, transactional: bool
) -> None:
    topic = (await new_topic(kafka_broker)).name
    options = {"transactional_id": f"{topic}-writer"} if transactional else {}
    async with writing(kafka_broker, **options) as writer:
        with pytest.raises(ServiceError, match=r"no such topic or partition: .*missing.*create"):
            await writer.write(rows("x", topic="missing"))
        with pytest.raises(ServiceError, match=rf"no such topic or partition: .*{topic}-7"):
            await writer.write(rows("x", topic=topic, partition=7))
        for given, says in (
            (rows(bytes(2 << 20), topic=topic), r"takes \d+ bytes, more than max\.request\.size"),
            (rows("x"), "there is no topic: pass topic="),
            ([*rows("x", topic=topic), *rows("x")], "a record has no topic"),
            (rows("x", topic=topic, offset=1), "'offset', which Kafka cannot hold"),
            (rows("x", topic=topic, key=1.5), "'key' of a row cannot be made binary"),
            ([{"topic": topic}], "no column 'value'"),
        ):
            with pytest.raises(UnwritableRecordError, match=says):
                await writer.write(given)
        if transactional:
            await writer.commit()
        await writer.write(rows("y", topic=topic))
        if transactional:
            await writer.commit()
    if transactional:
        await reported(kafka_broker, f"{topic}-writer")
    assert await values(kafka_broker, topic) == [b"y"]


async def test_a_partitioner_that_returns_no_partitions_is_an_error(
    kafka_broker: KafkaBroker,
) -> None:
    topic = (await new_topic(kafka_broker)).name
    for wrong in (["a"], [7], [], None):
        async with writing(kafka_broker, topic, partitioner=lambda *_: wrong) as writer:  # noqa: B023
            with pytest.raises(UnwritableRecordError, match="the partitioner must return"):
                await writer.write(rows("x"))


@pytest.mark.fault("A permission is missing: the error names it")
async def test_what_is_not_permitted_is_named(cluster: Secured) -> None:
    broker, user = cluster.broker, "exact"
    for topic in ("read-from", "written-to"):
        await create(broker, topic)
    guarded = Cluster(cluster.guarded, security=cluster.guarded_login(user))
    source = fanout.kafka.KafkaSource(cluster=guarded, topics="read-from")

    async def attempt() -> None:
        async with open_writer(guarded, "written-to", transactional_id="exact-job") as writer:
            await writer.write(rows("x"))
            await writer.abort()
            await writer.positions(source)

    needed = [
        (
            "grant the principal WRITE on the transactional id exact-job",
            ResourceType.TRANSACTIONAL_ID,
            "exact-job",
        ),
        ("grant the principal WRITE on the topic", ResourceType.TOPIC, "written-to"),
        ("grant the principal READ on the group exact-job", ResourceType.GROUP, "exact-job"),
        ("TopicAuthorizationFailedError: read-from", ResourceType.TOPIC, "read-from"),
    ]
    for says, kind, name in needed:
        with pytest.raises(FanOutError, match=says) as caught:
            await attempt()
        assert isinstance(caught.value, ServiceError)
        operation = AclOperation.WRITE if "WRITE" in says else AclOperation.READ
        await asyncio.to_thread(grant, broker, permission(user, kind, name, operation))
    await attempt()


@pytest.mark.fault("Produce")
async def test_a_compacted_topic_takes_no_record_without_a_key(kafka_broker: KafkaBroker) -> None:
    topic = await new_topic(kafka_broker, configs={"cleanup.policy": "compact"})

    async def write() -> None:
        async with writing(kafka_broker) as writer:
            await writer.write([{"topic": topic.name, "value": b"no key"}])

    with pytest.raises(UnwritableRecordError, match="a compacted one takes none without a key"):
        await write()
