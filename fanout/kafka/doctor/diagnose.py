"""Check whether a cluster can be used as a source or a sink of fanout needs it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.findings import Backlog, fine, lander_cores, lander_count, problem, unknown
from fanout.core.positions import Cursor
from fanout.errors import OptionError
from fanout.kafka.doctor.brokers import (
    examine_advertised,
    examine_bootstrap,
    examine_clock,
    examine_features,
    probe_servers,
)
from fanout.kafka.doctor.calls import CALL_ERRORS, DoctorCalls, reason
from fanout.kafka.doctor.lag import examine_partitions, read_partition_backlogs
from fanout.kafka.doctor.resources import (
    examine_group,
    examine_idempotence,
    examine_limits,
    examine_replicas,
    examine_retention,
    examine_share_group,
    examine_topics,
    examine_transactional_id,
)
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.cluster_metadata import fetch_metadata
from fanout.kafka.protocol.connections import CallTimeouts, open_connections
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.reading.client import start_client
from fanout.kafka.reading.consumer_options import ConsumerOptions
from fanout.kafka.reading.offsets import next_offset
from fanout.kafka.share.group_admin import ShareGroupAdmin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.findings import Finding
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.protocol.connections import Connections
    from fanout.kafka.reading.transport import KafkaTransport


_NO_LANDERS: Final = problem(
    "landers",
    "a share group locks records for one stream, so landers cannot read it",
    "leave --landers out, or start more queries on the group",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaNeeds:
    """What a source or a sink needs of a cluster.

    Args:
        group: The group whose offsets a KafkaSource commits.
        share_group: The group of a KafkaShareSource.
        sink_topics: The topics that are written to.
        transaction_timeout: The sink's, in seconds; None for the most that brokers allow.
        landers: How many landers are to read the topics; None for the driver.
    """

    topics: Sequence[str] = ()
    group: str | None = None
    share_group: str | None = None
    sink_topics: Sequence[str] = ()
    transactional_id_prefix: str = "fanout"
    transaction_timeout: float | None = None
    landers: int | None = None


async def diagnose_cluster(
    cluster: Cluster, needs: KafkaNeeds, *, checkpoint: Checkpoint | None = None
) -> list[Finding]:
    """Check what a source or a sink needs, and advise what to do about each problem.

    No record is read or written, but for the oldest unread one of each partition. No group is
    joined and nothing is changed. Stored positions are compared with the topics and their
    retention. A failure is a finding, not an exception.
    """
    if checkpoint is not None:
        needs = _with_checkpoint(needs, checkpoint)
    security = await asyncio.to_thread(cluster.load_security)
    probes = await probe_servers(cluster, cluster.addresses)
    findings = examine_bootstrap(probes, security.protocol)
    reached = [str(server) for server, probe in probes.items() if not isinstance(probe, str)]
    if not reached:
        return findings
    alive = replace(cluster, servers=reached, security=security)
    timeouts = CallTimeouts(cluster.connect_timeout)
    async with open_connections(alive.named("doctor"), timeouts) as connections:
        calls = DoctorCalls(connections, cluster.connect_timeout)
        try:
            metadata = await calls.retried(lambda: fetch_metadata(connections, []))
        except CALL_ERRORS as error:
            return [*findings, problem("cluster", reason(error), "check the brokers' log")]
        brokers = metadata.brokers
        if not brokers:
            return [*findings, problem("cluster", "it lists no brokers", "check the brokers' log")]
        findings.append(fine("cluster", f"{metadata.cluster_id} has {len(brokers)} brokers"))
        advertised = await probe_servers(cluster, brokers.values(), metadata.cluster_id or "")
        features, levels = await examine_features(calls)
        findings += examine_advertised(brokers, advertised)
        findings += [features, await examine_clock(calls)]
        retention = await _examine_reading(calls, needs, levels, findings)
        if needs.sink_topics:
            findings += await _examine_writing(calls, needs, min(brokers))
        findings += await _examine_lag(calls, needs, checkpoint, retention)
    return findings


async def read_lag(cluster: Cluster, checkpoint: Checkpoint) -> dict[str, Backlog]:
    """Find out how far a checkpoint is behind the ends of its partitions.

    Raises:
        OptionError: It is a checkpoint of another cluster, or one without partitions.
        ServiceError: The cluster cannot be reached, or refuses a call.
    """
    timeouts = CallTimeouts(cluster.connect_timeout)
    async with open_cluster(cluster.named("doctor"), timeouts) as connections:

        async def read() -> dict[str, Backlog]:
            if (group := _share_group(checkpoint)) is None:
                transport = await _start_client(connections)
                offsets = _offsets_of(checkpoint, transport.cluster_id)
                return await read_partition_backlogs(transport, offsets)
            starts = await ShareGroupAdmin(connections, group).start_offsets()
            return {
                str(partition): Backlog(retention=math.inf, hours=math.inf, records=at.lag)
                for partition, at in sorted(starts.items())
            }

        failure = "the ends of the partitions cannot be looked up"
        jitter = FullJitter(Backoff(base=0.2, cap=1), Random())  # noqa: S311 - jitter, no secret
        return await with_retries(failure, read, jitter, patience=cluster.connect_timeout)


def _with_checkpoint(needs: KafkaNeeds, checkpoint: Checkpoint) -> KafkaNeeds:
    """Add what a checkpoint is of: its share group, or its topics where none are named."""
    if (group := _share_group(checkpoint)) is not None:
        return replace(needs, share_group=needs.share_group or group)
    if needs.topics or "kafka:" not in checkpoint.source:
        return needs
    return replace(needs, topics=sorted({Partition.of(id_).topic for id_ in checkpoint.splits}))


def _share_group(checkpoint: Checkpoint) -> str | None:
    """Return the share group of a checkpoint; None for another kind of source."""
    match checkpoint.source.split(":", 2):
        case ["kafka-share", _, group]:
            return group
        case _:
            return None


async def _examine_reading(
    calls: DoctorCalls, needs: KafkaNeeds, levels: Mapping[str, int], findings: list[Finding]
) -> dict[str, float]:
    """Add the findings about topics and groups; return the hours that topics keep records."""
    retention = {}
    if needs.topics:
        found, counts = await examine_topics(calls, needs.topics, "READ", "DESCRIBE")
        findings += found
        for topic in counts:
            finding, retention[topic] = await examine_retention(calls, topic)
            findings.append(finding)
        if needs.landers is not None:
            partitions = sum(counts.values())
            findings += [
                lander_count(needs.landers, partitions, "partitions"),
                lander_cores(needs.landers),
            ]
    if needs.group is not None:
        findings += await examine_group(calls, needs.group)
    if needs.share_group is not None:
        findings += await examine_share_group(calls, needs.share_group, levels)
        if needs.landers is not None:
            findings.append(_NO_LANDERS)
    return retention


async def _examine_writing(calls: DoctorCalls, needs: KafkaNeeds, broker: int) -> list[Finding]:
    findings, counts = await examine_topics(calls, needs.sink_topics, "WRITE", "DESCRIBE")
    findings += [await examine_replicas(calls, topic) for topic in counts]
    return [
        *findings,
        await examine_transactional_id(calls, needs.transactional_id_prefix),
        await examine_idempotence(calls),
        await examine_limits(calls, broker, needs.transaction_timeout),
    ]


async def _examine_lag(
    calls: DoctorCalls,
    needs: KafkaNeeds,
    checkpoint: Checkpoint | None,
    retention: Mapping[str, float],
) -> list[Finding]:
    """Compare the positions of a checkpoint, or else of the group, with the topics."""
    if checkpoint is None and (needs.group is None or not retention):
        return []
    if checkpoint is not None and _share_group(checkpoint) is not None:
        return []  # the finding about the share group has it
    try:
        transport = await calls.retried(lambda: _start_client(calls.connections))
        if checkpoint is not None:
            offsets = _offsets_of(checkpoint, transport.cluster_id)
        else:
            offsets = await _committed(transport, needs.group or "", list(retention))
        if not offsets:
            return [unknown("lag", "no partition is begun")]
        read = partial(read_partition_backlogs, transport, offsets, retention)
        backlogs = await calls.retried(read)
    except OptionError as error:
        advice = "resume it with the cluster that it was written for, or start with a new one"
        return [problem("checkpoint", str(error), advice)]
    except CALL_ERRORS as error:
        return [unknown("lag", reason(error))]
    return examine_partitions(backlogs)


async def _start_client(connections: Connections) -> KafkaTransport:
    """Return calls that see records of open transactions too, which a reader waits for."""
    return await start_client(connections, ConsumerOptions(), isolation_level="read_uncommitted")


async def _committed(
    transport: KafkaTransport, group: str, topics: Sequence[str]
) -> dict[Partition, int | None]:
    """Return the offsets that a group has committed in topics."""
    answers = (await transport.describe(topics)).items()
    found = {topic: numbers for topic, numbers in answers if not isinstance(numbers, Exception)}
    partitions = [Partition(topic, n) for topic, numbers in found.items() for n in numbers]
    committed = await transport.committed(group, partitions)
    return {p: next_offset(at) for p, at in committed.items() if at is not None}


def _offsets_of(checkpoint: Checkpoint, cluster_id: str) -> dict[Partition, int | None]:
    """Return the next offset of each partition that is not read to its end."""
    if checkpoint.source.removeprefix("shuffle:") != f"kafka:{cluster_id}":
        raise OptionError(f"it belongs to {checkpoint.source}, not to kafka:{cluster_id}")
    return {
        Partition.of(id_): next_offset(at.position) if isinstance(at.position, Cursor) else None
        for id_, at in checkpoint.splits.items()
        if not at.ended
    }
