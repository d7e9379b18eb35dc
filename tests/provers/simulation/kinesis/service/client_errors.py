"""The errors that botocore raises where the service refuses a call."""

from __future__ import annotations

from typing import Final

from botocore.exceptions import ClientError

__all__ = ("client_error",)

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
