"""Check topics, groups and transactional ids: what may be done with them, and their limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    InvalidProducerIdMapping,
    NoError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest

from fanout.core.findings import MILLIS_PER_HOUR, Finding, fine, problem, unknown, warning
from fanout.core.sentence import Sentence
from fanout.kafka.doctor.calls import (
    BROKER,
    CALL_ERRORS,
    TOPIC,
    failed_call,
    permissions,
    reason,
    refused,
)
from fanout.kafka.protocol.coordinators import CoordinatorType
from fanout.kafka.protocol.error_codes import error_of, raise_if_refused
from fanout.kafka.protocol.messages.cluster_state import (
    GroupOperationsRequest,
    GroupTypesRequest,
    TopicIdsRequest,
)
from fanout.kafka.share.group_admin import NO_SHARE_GROUPS, ShareGroupAdmin
from fanout.kafka.writing.producer_id import Idempotent, obtain_producer_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kafka.doctor.calls import DoctorCalls

_MOST, _EXPIRY = "transaction.max.timeout.ms", "transactional.id.expiration.ms"
_DAY: Final = 24 * 3_600_000
_NO_PRODUCER: Final = (-1, -1)  # its transactions do not exist, so that nothing is changed

_TIME, _BYTES, _CLEANUP, _IN_SYNC = (
    "retention.ms",
    "retention.bytes",
    "cleanup.policy",
    "min.insync.replicas",
)
_GRANT_GROUP: Final = "grant the principal READ and DESCRIBE on the group {}"
_NO_GROUP: Final = {"", "Dead", "Empty"}


async def examine_topics(
    calls: DoctorCalls, topics: Sequence[str], *needed: str
) -> tuple[list[Finding], Mapping[str, int]]:
    """Check that topics exist, have leaders, and may be used; count the partitions of each."""
    try:
        response = await calls.send(TopicIdsRequest(topics, operations=True))
    except CALL_ERRORS as error:
        return [unknown("topics", f"not described: {reason(error)}")], {}
    findings: list[Finding] = []
    counts = {}
    for code, topic, _, _, partitions, operations, _ in response.topics:
        refused = error_of(code, topic)
        if refused is not None:
            findings.append(_no_topic(topic, refused))
            continue
        counts[topic] = len(partitions)
        findings += [
            _partitions(topic, partitions),
            permissions(f"topic {topic}", operations, *needed),
        ]
    return findings, counts


async def examine_retention(calls: DoctorCalls, topic: str) -> tuple[Finding, float]:
    """Report for how many hours a topic keeps its records; infinite where it is not known."""
    check = f"retention of {topic}"
    try:
        found = await calls.settings(TOPIC, topic, _TIME, _BYTES, _CLEANUP)
    except CALL_ERRORS as error:
        return _unreadable(check, error, f"topic {topic}"), math.inf
    millis, size, policy = int(found[_TIME]), int(found[_BYTES]), found[_CLEANUP]
    hours = math.inf if millis < 0 or "delete" not in policy else millis / MILLIS_PER_HOUR
    kept = "for ever" if hours == math.inf else f"for {hours:g} h"
    bound = f", and {size:,} bytes of a partition at most" if size >= 0 else ""
    return fine(check, f"records are kept {kept}{bound} ({_CLEANUP}={policy})"), hours


async def examine_replicas(calls: DoctorCalls, topic: str) -> Finding:
    """Compare the in-sync replicas of a topic with those that a write waits for."""
    check = f"replicas of {topic}"
    try:
        found = await calls.settings(TOPIC, topic, _IN_SYNC)
        response = await calls.send(TopicIdsRequest([topic]))
    except CALL_ERRORS as error:
        return _unreadable(check, error, f"topic {topic}")
    least = int(found[_IN_SYNC])
    ((*_, partitions, _, _),) = response.topics
    short = [str(row[1]) for row in partitions if len(row[5]) < least]
    if short:
        detail = f"partitions {', '.join(short)} have fewer than {_IN_SYNC}={least} in sync"
        return problem(check, detail, "writes are refused until the missing brokers are back")
    return fine(check, f"each partition has at least {_IN_SYNC}={least} in sync")


async def examine_group(calls: DoctorCalls, group: str) -> list[Finding]:
    """Check a group whose offsets a KafkaSource commits without being a member."""
    try:
        state, kind, members, operations = await _describe_group(calls, group)
    except CALL_ERRORS as error:
        return [failed_call(f"group {group}", error, _GRANT_GROUP.format(group))]
    return [_group_state(group, state, kind, members), _may_use(group, operations)]


async def examine_share_group(
    calls: DoctorCalls, group: str, features: Mapping[str, int]
) -> list[Finding]:
    """Check a share group: whether the cluster has any, its state, and its permissions."""
    if features.get("share.version", 0) < 1:
        advice = "upgrade the brokers, or read with a KafkaSource"
        return [problem("share groups", NO_SHARE_GROUPS, advice)]
    check, admin = f"share group {group}", ShareGroupAdmin(calls.connections, group)
    try:
        _, kind, _, operations = await _describe_group(calls, group)
        if kind not in {"", "share"}:
            return [problem(check, f"{group} is a {kind} group", "give it another group_id")]
        state, members = await calls.retried(admin.members)
        offsets = await calls.retried(admin.start_offsets)
        await calls.retried(admin.settings)
    except CALL_ERRORS as error:
        return [failed_call(check, error, _GRANT_GROUP.format(group))]
    lag = [at.lag for at in offsets.values() if at.lag is not None]
    behind = f"; {sum(lag):,} records are not finished" if lag else ""
    detail = f"{state.lower()}, with {len(members)} members{behind}"
    if state == "Unknown":
        detail = "it does not exist yet, and begins with its first member"
    return [fine(check, detail), _may_use(group, operations)]


async def _describe_group(calls: DoctorCalls, group: str) -> tuple[str, str, int, int]:
    """Return the state, the type, the members, and the authorized operations of a group."""
    kind = CoordinatorType.GROUP
    request = GroupOperationsRequest(group)
    response = await calls.coordinate(kind, group, request)
    ((code, _, state, _, _, members, operations, _),) = response.groups
    raise_if_refused(code, f"the group {group} cannot be described", group=group)
    listed = await calls.coordinate(kind, group, GroupTypesRequest())
    types = {row[0]: (row[2], row[3].lower()) for row in listed.groups}
    # A group of another type than classic is dead in the first answer.
    state, type_ = types.get(group, (state, ""))
    return state, type_, len(members), operations


def _group_state(group: str, state: str, kind: str, members: int) -> Finding:
    check = f"group {group}"
    if kind == "share":
        advice = "name it as a share group (--share-group), or give the source another group_id"
        return problem(check, f"{group} is a share group", advice)
    if not kind:
        return fine(check, "it does not exist yet, and begins with the first commit")
    if state not in _NO_GROUP:
        counted = f" with {members} members" if members else ""
        advice = (
            "fanout commits without being a member, which brokers refuse while there are some: "
            "stop those consumers, or give the source a group_id of its own"
        )
        return problem(check, f"a {kind} group{counted} that is {state.lower()}", advice)
    return fine(check, f"a {kind} group that is {state.lower()}")


def _may_use(group: str, operations: int) -> Finding:
    return permissions(f"group {group}", operations, "READ", "DESCRIBE")


def _partitions(topic: str, partitions: Sequence[Any]) -> Finding:
    check, count = f"topic {topic}", len(partitions)
    leaderless = sorted(number for _, number, leader, *_ in partitions if leader < 0)
    if leaderless:
        numbers = ", ".join(map(str, leaderless))
        detail = f"{count} partitions; {numbers} of them have no leader"
        return problem(check, detail, "start the brokers that hold them; reading waits meanwhile")
    short = sum(len(row[5]) < len(row[4]) for row in partitions)
    if short:
        detail = f"{count} partitions; {short} of them have replicas that are not in sync"
        return warning(check, detail, "check the brokers: another failure may stop reading")
    return fine(check, f"{count} partitions")


def _no_topic(topic: str, error: Exception) -> Finding:
    check = f"topic {topic}"
    match error:
        case UnknownTopicOrPartitionError():
            return problem(check, "it does not exist", "create it, or check name and cluster")
        case TopicAuthorizationFailedError():
            advice = f"grant the principal DESCRIBE on the topic {topic}, or check the name"
            return problem(check, "it does not exist, or DESCRIBE is not granted", advice)
        case _:
            return problem(check, reason(error), "check the name, and the brokers' log")


def _unreadable(check: str, error: Exception, resource: str) -> Finding:
    grant = f"grant DESCRIBE_CONFIGS on the {resource} to find out"
    return unknown(check, reason(error), grant if refused(error) else "")


async def examine_transactional_id(calls: DoctorCalls, prefix: str) -> Finding:
    """Try an id and a marker group with a prefix in a transaction that does not exist.

    A broker checks the permissions first, and then finds that the producer has no transaction.
    """
    name, group = f"{prefix}-doctor", f"{prefix}-doctor-marker"
    check = f"transactional ids {prefix}-*"
    request = AddOffsetsToTxnRequest(name, *_NO_PRODUCER, group)
    rights = f"WRITE on the transactional ids and READ on the groups that begin with {prefix}-"
    advice = f"grant the principal {rights} (--resource-pattern-type prefixed)"
    try:
        response = await calls.coordinate(CoordinatorType.TRANSACTION, name, request)
    except CALL_ERRORS as error:
        return failed_call(check, error, advice)
    match response.error_code:
        case TransactionalIdAuthorizationFailed.errno:
            return problem(check, f"WRITE is not granted on {name}", advice)
        case GroupAuthorizationFailedError.errno:
            return problem(check, f"READ is not granted on the group {group}", advice)
        case NoError.errno | InvalidProducerIdMapping.errno:
            return fine(check, f"WRITE is granted, and READ on the groups {prefix}-*-marker")
        case code:
            return unknown(check, f"not found out: {error_of(code, name)}")


async def examine_idempotence(calls: DoctorCalls) -> Finding:
    """Try whether a producer id is assigned, as a sink with at_least_once needs it."""
    check = "idempotent writes"
    try:
        await calls.retried(lambda: obtain_producer_id(calls.connections, Idempotent()))
    except CALL_ERRORS as error:
        return failed_call(check, error, "grant it, or only transactions can be written")
    return fine(check, "granted")


async def examine_limits(calls: DoctorCalls, broker: int, seconds: float | None) -> Finding:
    """Compare the sink's timeout, None for the longest allowed, with the limits of a broker."""
    check = "transaction limits"
    try:
        found = await calls.settings(BROKER, str(broker), _MOST, _EXPIRY)
    except CALL_ERRORS as error:
        grant = "grant DESCRIBE_CONFIGS on the cluster to find out; " if refused(error) else ""
        return unknown(check, reason(error), f"{grant}a sink assumes 15 minutes")
    most, expiry = int(found[_MOST]), int(found[_EXPIRY])
    detail = f"{_MOST}={most}, {_EXPIRY}={expiry}"
    if seconds is not None and seconds * 1000 > most:
        asked = Sentence.of("; {transaction_timeout:a transaction_timeout} of ")
        longer = Sentence(detail, asked, f"{seconds:g} s is longer")
        lower = Sentence.of("lower {transaction_timeout}, or raise the brokers' limit")
        return problem(check, longer, lower)
    if expiry < _DAY:
        advice = (
            "a job that is down for longer cannot find out whether its last batch was committed: "
            f"raise {_EXPIRY}"
        )
        return warning(check, detail, advice)
    return fine(check, detail)
