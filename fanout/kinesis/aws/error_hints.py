"""Name the errors of Kinesis, and tell the user what to do about them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from fanout.core.error_text import text_of
from fanout.errors import FanOutError, RemoteError, ServiceError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The credentials are valid, but do not allow the call.
ACCESS_DENIED: Final = frozenset({"AccessDeniedException", "AccessDenied", "NotAuthorized"})
# The service does not accept the credentials or the signature.
BAD_CREDENTIALS: Final = frozenset(
    {
        "ExpiredTokenException",
        "ExpiredToken",
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "IncompleteSignature",
        "RequestExpired",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
    }
)

_NOT_FOUND: Final = "ResourceNotFoundException"
# Calls whose only resource is a stream.
_STREAM_CALLS: Final = frozenset({"DescribeStreamSummary", "ListShards", "PutRecords"})
_SUBSCRIBE: Final = "SubscribeToShard"
_PUT: Final = "PutRecords"
# Calls whose resource is a consumer in the Service Authorization Reference of Kinesis Data Streams;
# that of all others is the stream.
_CONSUMER_CALLS: Final = frozenset(
    {_SUBSCRIBE, "DescribeStreamConsumer", "DeregisterStreamConsumer"}
)
_CREDENTIALS: Final = "check that the credentials are valid and this machine's clock is right"
_KMS: Final = "the KMS key of the stream"
_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(BAD_CREDENTIALS, _CREDENTIALS),
    _NOT_FOUND: (
        "the stream, its consumer or the shard is gone; check that the consumer is still "
        "registered and that the shard is within the retention period"
    ),
    "InvalidArgumentException": (
        "the position does not belong to this shard, or its records have expired; start again from "
        "TRIM_HORIZON or a timestamp"
    ),
    "OptInRequired": "the account has no subscription to Kinesis; check it and its payments",
    "KMSAccessDeniedException": (
        f"grant kms:Decrypt on {_KMS} through kinesis, in the reader's policy and, for a key of "
        "another account, in the key's"
    ),
    "KMSDisabledException": f"{_KMS} is disabled; enable it",
    "KMSInvalidStateException": (
        f"{_KMS} cannot be used in its state; if its deletion is pending, cancel that and enable it"
    ),
    "KMSNotFoundException": (
        f"{_KMS} does not exist; without it the records cannot be read, so check the key that the "
        "stream names"
    ),
    "KMSOptInRequired": f"the account that has {_KMS} has no subscription to KMS",
}


def code_of(error: BaseException) -> str | None:
    """Return the service's code of an error; None if it has none."""
    match error:
        case RemoteError(code=code):
            return code
        case ClientError():
            return str(error.response.get("Error", {}).get("Code", ""))
        case _:
            return None


def name_of(error: BaseException) -> str:
    """Return the service's code of an error, or the name of its type."""
    return code_of(error) or type(error).__name__


_PUT_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(ACCESS_DENIED, "grant kinesis:PutRecords and kinesis:ListShards on the stream"),
    "KMSAccessDeniedException": (
        f"grant kms:GenerateDataKey on {_KMS} through kinesis, in the writer's policy and, for a "
        "key of another account, in the key's"
    ),
}


def hint_of(error: BaseException) -> str:
    """Return what the user can do about an error, as a clause; empty if nothing is known."""
    code = code_of(error) or ""
    match error:
        case NoCredentialsError() | PartialCredentialsError() | CredentialRetrievalError():
            return _CREDENTIALS
        case ClientError() if error.operation_name.startswith("AssumeRole"):
            return (
                "check role_arn, and that the role trusts the credentials in use; its trust policy "
                "may ask for an external_id"
            )
        case ClientError() if error.operation_name == _PUT and code in _PUT_HINTS:
            return _PUT_HINTS[code]
        case ClientError() | RemoteError() if code in ACCESS_DENIED:
            return _grant(error.operation_name if isinstance(error, ClientError) else _SUBSCRIBE)
        case ClientError() if code == _NOT_FOUND and error.operation_name in _STREAM_CALLS:
            return "check the stream's name, its region and its account; it may have been deleted"
        case _:
            return _HINTS.get(code, "")


def _grant(operation: str) -> str:
    resource = "consumer" if operation in _CONSUMER_CALLS else "stream"
    tagging = ""
    if operation == "RegisterStreamConsumer":
        tagging = " (with tags, also kinesis:TagResource on the consumer)"
    return (
        f"grant kinesis:{operation} on the {resource}{tagging}; `fanout iam-policy` writes "
        f"down all that a reader needs"
    )


def explain(error: Exception, doing: str) -> FanOutError:
    """Turn an error of the service or the network into one sentence for the user.

    Args:
        error: The error of a call.
        doing: The purpose of the call, as a clause: `"the stream 'orders' cannot be described"`.
    """
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            return SetupError(
                f"{doing}: no AWS credentials were found; set AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY, a profile, or a role"
            )
        case EndpointConnectionError() | HTTPClientError() | aiohttp.ClientError() | OSError():
            return ServiceError(
                f"{doing}: the endpoint does not answer ({text_of(error)}); check the region, "
                f"endpoint_url and the network"
            )
        case BotoCoreError():
            return SetupError(
                f"{doing}: {text_of(error)} (check the AWS configuration of this machine)"
            )
        case _:
            hint = hint_of(error)
            text = f"{doing}: {text_of(error)}"
            return ServiceError(f"{text} ({hint})" if hint else text)


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn the errors of the block into one sentence for the user.

    Args:
        doing: The purpose of the block, as a clause; see `explain`.

    Raises:
        FanOutError: For any error; a FanOutError passes unchanged.
    """
    try:
        yield
    except FanOutError:
        raise
    except Exception as error:
        raise explain(error, doing) from error
