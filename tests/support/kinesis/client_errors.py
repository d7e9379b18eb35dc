"""The errors that botocore raises where the service refuses a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    SSLError,
)

if TYPE_CHECKING:
    from random import Random

__all__ = ("client_error", "no_answer")

_ENDPOINT: Final = "https://kinesis.simulated"
_NO_ANSWER: Final = (EndpointConnectionError, ConnectTimeoutError, SSLError, ConnectionClosedError)

_STATUS: Final = {
    "InternalFailureException": 500,
    "InternalFailure": 500,
    "ServiceUnavailable": 503,
}


def client_error(code: str, action: str) -> ClientError:
    """Make what botocore raises where the service refuses a call.

    Args:
        code: The error, such as LimitExceededException.
        action: The name of the call.
    """
    answer = {
        "Error": {"Code": code, "Message": "simulated"},
        "ResponseMetadata": {"HTTPStatusCode": _STATUS.get(code, 400)},
    }
    return ClientError(answer, action)


def no_answer(random: Random) -> Exception:
    """Make what botocore raises where no answer comes."""
    kind = random.choice(_NO_ANSWER)
    error: Exception = kind(endpoint_url=_ENDPOINT, error="simulated")
    return error
