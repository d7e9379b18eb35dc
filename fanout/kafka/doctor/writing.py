"""Check what a sink needs: its topic, transactional ids, and the brokers' limits on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    InvalidProducerIdMapping,
    NoError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest

from fanout.core.findings import Finding, fine, problem, unknown, warning
from fanout.core.sentence import Sentence
from fanout.kafka.doctor.calls import BROKER, CALL_ERRORS, failed_call, reason, refused
from fanout.kafka.protocol.coordinators import CoordinatorType
from fanout.kafka.protocol.error_codes import error_of
from fanout.kafka.writing.producer_id import Idempotent, obtain_producer_id

if TYPE_CHECKING:
    from fanout.kafka.doctor.calls import DoctorCalls

_MOST, _EXPIRY = "transaction.max.timeout.ms", "transactional.id.expiration.ms"
_DAY: Final = 24 * 3_600_000
_NO_PRODUCER: Final = (-1, -1)  # its transactions do not exist, so that nothing is changed


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
    """Compare the sink's timeout, None for the longest, with the limits of a broker."""
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
