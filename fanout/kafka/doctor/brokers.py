"""Check whether this machine reaches every broker, and compare clocks and features."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fanout.core.findings import Finding, fine, problem, unknown, warning
from fanout.kafka.doctor.calls import CALL_ERRORS, reason
from fanout.kafka.protocol.cluster_metadata import fetch_metadata
from fanout.kafka.protocol.connections import CallTimeouts, open_connections
from fanout.kafka.protocol.diagnosis import diagnose
from fanout.kafka.protocol.messages.cluster_state import (
    FeaturesRequest,
    QuorumRequest,
    finalized_features,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fanout.kafka.cluster import Cluster, Server
    from fanout.kafka.doctor.calls import DoctorCalls

_NOTABLE_SKEW: Final = 60_000  # milliseconds
_SHOWN: Final = ("metadata.version", "transaction.version", "share.version")
_REACH: Final = "check the address, and the protocol and the credentials that are given for it"
_ADVERTISED: Final = (
    "clients use the address that a broker advertises: if it is wrong, correct its "
    "advertised.listeners; if nothing answers there, open the network and the name service to it"
)


async def probe_servers(
    cluster: Cluster, servers: Iterable[Server], cluster_id: str = ""
) -> Mapping[Server, str | float]:
    """Connect to all servers at once, each as a client does, and ask each for the brokers.

    Return for each the seconds until it answered, or why it cannot be used. Each must belong to the
    cluster of this id; an empty one fits any.
    """
    security = await asyncio.to_thread(cluster.load_security)

    async def probe(server: Server) -> str | float:
        begin = time.monotonic()
        timeouts = CallTimeouts(cluster.connect_timeout)
        alone = replace(cluster, servers=str(server), security=security)
        try:
            async with open_connections(alone.named("doctor"), timeouts) as connections:
                await fetch_metadata(connections, [], cluster_id=cluster_id)
        except CALL_ERRORS as error:
            return (await diagnose(server, security, error)).text
        return time.monotonic() - begin

    async with asyncio.TaskGroup() as group:
        tasks = {server: group.create_task(probe(server)) for server in dict.fromkeys(servers)}
    return {server: task.result() for server, task in tasks.items()}


def examine_bootstrap(probes: Mapping[Server, str | float], protocol: str) -> list[Finding]:
    """Judge the connections to the servers that the user named."""
    findings = []
    for server, probe in probes.items():
        check = f"server {server}"
        if isinstance(probe, str):
            findings.append(problem(check, probe, _REACH))
        else:
            findings.append(fine(check, f"answers to {protocol} within {probe * 1000:.0f} ms"))
    return findings


def examine_advertised(
    brokers: Mapping[int, Server], probes: Mapping[Server, str | float]
) -> list[Finding]:
    """Judge the connections to the addresses that brokers advertise."""
    findings = []
    for broker, server in sorted(brokers.items()):
        check, probe = f"broker {broker}", probes[server]
        if isinstance(probe, str):
            detail = f"advertises {server}, which this machine cannot use: {probe}"
            findings.append(problem(check, detail, _ADVERTISED))
        else:
            detail = f"advertises {server}, which answers within {probe * 1000:.0f} ms"
            findings.append(fine(check, detail))
    return findings


async def examine_features(calls: DoctorCalls) -> tuple[Finding, Mapping[str, int]]:
    """Report the levels of the features that the cluster has enabled; none of old brokers."""
    try:
        levels = finalized_features(await calls.send(FeaturesRequest()))
    except CALL_ERRORS as error:
        return unknown("features", reason(error)), {}
    shown = ", ".join(f"{name}={levels[name]}" for name in _SHOWN if name in levels)
    return fine("features", shown or "the brokers are older than features"), levels


async def examine_clock(calls: DoctorCalls) -> Finding:
    """Compare the clocks of this machine and of the leading controller (DescribeQuorum)."""
    check = "clock"
    before = _now()
    try:
        response = await calls.send(QuorumRequest())
    except CALL_ERRORS as error:
        return unknown(check, f"not compared: {reason(error)}")
    there = _time_of_leader(response)
    if there is None:
        detail = "not compared, as DESCRIBE is not granted on the cluster"
        return unknown(check, detail, "grant it to find out, or compare the clocks yourself")
    here = (before + _now()) // 2
    seconds = abs(here - there) / 1000
    if abs(here - there) < _NOTABLE_SKEW:
        return fine(check, f"within {max(seconds, 1):.0f} s of the controller's")
    return warning(
        check,
        f"{seconds:.0f} s {'ahead of' if here > there else 'behind'} the controller's clock",
        "times as starts, watermarks and tokens depend on it: run a time service such as chrony "
        "here and on the brokers",
    )


def _time_of_leader(response: Any) -> int | None:
    """Return the leader's own time, which it reports as that of its last fetch from itself."""
    for _, partitions, _ in response.topics:
        for _, code, leader, _, _, voters, _, _ in partitions:
            times = {replica: caught_up for replica, _, _, caught_up, _ in voters}
            if not code and times.get(leader, -1) > 0:
                return int(times[leader])
    return None


def _now() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)
