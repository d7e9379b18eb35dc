"""Make the calls of the checks: each is tried again while its error may pass."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.protocol.admin import DescribeConfigsRequest

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.findings import Finding, fine, problem, unknown
from fanout.errors import FanOutError, ServiceError
from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType, codes_of
from fanout.kafka.protocol.error_codes import MOVED_COORDINATOR, raise_for_code
from fanout.kafka.protocol.retries import with_retries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fanout.kafka.protocol.connections import Connections

    _T = TypeVar("_T")

CALL_ERRORS: Final = (KafkaError, FanOutError, OSError)
"""The errors of brokers, of the network, and of options that do not fit a broker."""

BROKER: Final = 4
TOPIC: Final = 2
"""The types of resources whose configuration is requested."""

# The bits of operations in an answer, by their codes in AclOperation.java (KIP-430).
_OPERATIONS: Final = {"READ": 3, "WRITE": 4, "DESCRIBE": 8}
_REFUSED: Final = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
_FAILED: Final = "the call failed"
_PASSING: Final = MOVED_COORDINATOR | {GroupLoadInProgressError.errno}


@final
class DoctorCalls:
    """Calls to one cluster; none is tried again after `patience` seconds."""

    def __init__(self, connections: Connections, patience: float) -> None:
        self.connections = connections
        self._patience = patience
        self._coordinators = {kind: Coordinators(connections, kind) for kind in CoordinatorType}

    async def send(self, request: Any, broker: int | None = None) -> Any:
        """Send a request to a broker, or to any, and return the answer."""
        if broker is None:
            return await self.retried(lambda: self.connections.send_to_any(request))
        return await self.retried(lambda: self.connections.send(broker, request))

    async def coordinate(self, kind: CoordinatorType, key: str, request: Any) -> Any:
        """Send a request to the coordinator of a group or an id; to find it needs DESCRIBE."""

        async def call() -> Any:
            response = await self._coordinators[kind].send(key, request)
            for code in codes_of(response) & _PASSING:
                raise_for_code(code, key)
            return response

        return await self.retried(call)

    async def settings(self, kind: int, name: str, *settings: str) -> Mapping[str, str]:
        """Return some settings of a topic or a broker (DescribeConfigs).

        Raises:
            KafkaError: If they may not be read.
            ServiceError: If the broker does not answer, or does not report one of them.
        """
        request = DescribeConfigsRequest([(kind, name, list(settings))])
        response = await self.send(request, int(name) if kind == BROKER else None)
        ((code, _, _, _, entries),) = response.resources
        raise_for_code(code, f"the settings of {name} may not be read")
        found = {key: value for key, value, *_ in entries if value is not None}
        if missing := [key for key in settings if key not in found]:
            raise ServiceError(f"the broker does not report {', '.join(missing)}")
        return found

    async def retried(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call, and again while its error may pass."""
        jitter = FullJitter(Backoff(base=0.2, cap=1), Random())  # noqa: S311 - jitter, no secret
        return await with_retries(_FAILED, call, jitter, patience=self._patience)


def reason(error: BaseException) -> str:
    """Return why a call failed, as a clause."""
    text = str(error)
    if isinstance(error, ServiceError):
        text = text.removeprefix(f"{_FAILED}: ")
    # aiokafka puts the name of the class before its text, and its number.
    return text.partition("Error: ")[2] or text or type(error).__name__


def refused(error: BaseException) -> bool:
    """Say whether a call failed because a permission is missing."""
    return isinstance(error, _REFUSED) or isinstance(error.__cause__, _REFUSED)


def failed_call(check: str, error: BaseException, grant: str) -> Finding:
    """Judge a failed call: a refused permission is a problem, all else leaves the check open."""
    if refused(error):
        return problem(check, reason(error), grant)
    return unknown(check, reason(error), "try again in a minute, and check the brokers' log")


def permissions(resource: str, operations: int, *needed: str) -> Finding:
    """Judge what the principal may do, by the bit of each authorized operation in an answer."""
    check = f"permissions on {resource}"
    missing = [name for name in needed if not operations >> _OPERATIONS[name] & 1]
    if missing:
        what = " and ".join(missing)
        advice = f"grant the principal {what} on the {resource}"
        return problem(check, f"{what} is not granted", advice)
    return fine(check, f"{' and '.join(needed)} granted")
