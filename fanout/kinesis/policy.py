"""What each error of Kinesis means, as a table.

The codes are those of the service's model: the errors of SubscribeToShard, the exceptions inside
its event stream, and the common errors of AWS. `ClientError`s of a code that is not in the table
are judged by their HTTP status.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from botocore.parsers import ResponseParserError

from fanout.core.verdicts import Fatal, Pace, Phase, Retry
from fanout.errors import FanOutError, MalformedEventError, RemoteError, ServiceError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ("code_of", "explain", "explained", "judge")

_RETRY = Retry()
# The same bytes fail the same way each time, so an endless loop ends here.
_RETRY_THREE_TIMES = Retry(limit=3)
_GONE = Fatal(
    "the stream, its consumer or the shard is gone; check that the consumer is still registered "
    "and that the shard is within the retention period",
)
_ACCESS = (
    "grant kinesis:SubscribeToShard and kinesis:DescribeStreamConsumer on the consumer, and "
    "kinesis:DescribeStreamSummary, kinesis:ListShards and, for a new consumer, "
    "kinesis:RegisterStreamConsumer on the stream (with tags, also kinesis:TagResource on the "
    "consumer); fanout.kinesis.iam_policy writes all of it down"
)
_CREDENTIALS = "check that the credentials are valid and this machine's clock is right"
_KEY = "check the state of the stream's KMS key, and grant kms:Decrypt on it"


@dataclass(frozen=True, slots=True)
class _AtFirstFatal:
    """Fail where nothing has worked yet; later, allow for a rotation that is under way."""

    hint: str


_RULES: Final[Mapping[str, Retry | Fatal | _AtFirstFatal]] = {
    "ResourceNotFoundException": _GONE,
    # Another subscription of this consumer and shard is younger than 5 seconds, or took over.
    "ResourceInUseException": Retry(Pace.FLOOR),
    "LimitExceededException": _RETRY,
    "ProvisionedThroughputExceededException": _RETRY,
    "ThrottlingException": _RETRY,
    "RequestLimitExceeded": _RETRY,
    "InternalFailureException": _RETRY,
    "InternalFailure": _RETRY,
    "ServiceUnavailable": _RETRY,
    "RequestTimeout": _RETRY,
    "RequestTimeoutException": _RETRY,
    # The listing took longer than the 5 minutes for which its page token holds.
    "ExpiredNextTokenException": _RETRY,
    "InvalidArgumentException": Fatal(
        "the position is not one of this shard's, or its records have expired; start again from "
        "TRIM_HORIZON or a timestamp",
    ),
    "ValidationException": Fatal(),
    "AccessDeniedException": _AtFirstFatal(_ACCESS),
    "AccessDenied": _AtFirstFatal(_ACCESS),
    "NotAuthorized": _AtFirstFatal(_ACCESS),
    "ExpiredTokenException": _AtFirstFatal(_CREDENTIALS),
    "ExpiredToken": _AtFirstFatal(_CREDENTIALS),
    "UnrecognizedClientException": _AtFirstFatal(_CREDENTIALS),
    "InvalidSignatureException": _AtFirstFatal(_CREDENTIALS),
    "IncompleteSignature": _AtFirstFatal(_CREDENTIALS),
    "RequestExpired": _AtFirstFatal(_CREDENTIALS),
    "InvalidClientTokenId": _AtFirstFatal(_CREDENTIALS),
    "MissingAuthenticationToken": _AtFirstFatal(_CREDENTIALS),
    "OptInRequired": Fatal("the account has no subscription to Kinesis"),
    "KMSThrottlingException": _RETRY,
    "KMSAccessDeniedException": Fatal(_KEY),
    "KMSDisabledException": Fatal(_KEY),
    "KMSInvalidStateException": Fatal(_KEY),
    "KMSNotFoundException": Fatal(_KEY),
    "KMSOptInRequired": Fatal(_KEY),
}

_SERVER_ERROR = 500


def code_of(error: BaseException) -> str | None:
    """Return the service's own name of an error; None where the service did not name one."""
    match error:
        case RemoteError(code=code):
            return code
        case ClientError():
            return str(error.response.get("Error", {}).get("Code", ""))
        case _:
            return None


def judge(error: Exception, phase: Phase, *, first: bool = True) -> Retry | Fatal:
    """Say what an error means.

    Args:
        error: Anything that connecting, listing or a subscription raised.
        phase: What was being done.
        first: Whether no subscription of the stream has worked yet.
    """
    match _RULES.get(code_of(error) or ""):
        case None:
            return _judge_unnamed(error)
        case _AtFirstFatal(hint):
            at_first = first and phase is Phase.SUBSCRIBE
            return Fatal(hint) if at_first else Retry(hint=hint, limit=10)
        case rule:
            return rule


def _judge_unnamed(error: Exception) -> Retry | Fatal:
    match error:
        case MalformedEventError() | ResponseParserError():
            return _RETRY_THREE_TIMES
        case FanOutError():
            return _RETRY if error.retryable else Fatal()
        case ClientError():
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return _RETRY if status >= _SERVER_ERROR else Fatal()
        case NoCredentialsError() | PartialCredentialsError():
            return Fatal(_CREDENTIALS)
        case BotoCoreError() | aiohttp.ClientError() | OSError() if not isinstance(
            error, ParamValidationError
        ):
            return _RETRY
        case _:
            return Fatal("an error that nobody expected here; please report it")


def explain(error: Exception, doing: str) -> FanOutError:
    """Turn an error of the service or the network into one sentence for the user.

    Args:
        error: What a control-plane call raised.
        doing: What the call was for, as a clause: `"the stream 'orders' cannot be described"`.
    """
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            return SetupError(
                f"{doing}: no AWS credentials were found; set AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY, a profile, or a role"
            )
        case EndpointConnectionError() | HTTPClientError() | aiohttp.ClientError() | OSError():
            return ServiceError(
                f"{doing}: the endpoint does not answer ({error}); check the region, endpoint_url "
                f"and the network"
            )
        case BotoCoreError():
            return SetupError(f"{doing}: {error} (check the AWS configuration of this machine)")
        case ClientError() if error.operation_name.startswith("AssumeRole"):
            hint = "check role_arn, and that the role trusts the credentials in use"
        case _:
            hint = judge(error, Phase.SUBSCRIBE).hint
    return ServiceError(f"{doing}: {error} ({hint})" if hint else f"{doing}: {error}")


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Raise what goes wrong in the block as one sentence for the user.

    Args:
        doing: What the block is for, as `explain` takes it.

    Raises:
        FanOutError: If anything goes wrong; an error that is one already passes unchanged.
    """
    try:
        yield
    except FanOutError:
        raise
    except Exception as error:
        raise explain(error, doing) from error
