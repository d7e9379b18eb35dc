"""What each error of Kinesis means, as a table.

The codes are those of the service's model: the errors of SubscribeToShard, the exceptions inside
its event stream, and the common errors of AWS. `ClientError`s of a code that is not in the table
are judged by their HTTP status.
"""

from __future__ import annotations

from contextlib import contextmanager
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

from fanout.core.source import Action, Phase, Verdict
from fanout.errors import FanOutError, MalformedEventError, RemoteError, ServiceError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ("code_of", "explain", "explained", "judge")

_RETRY = Verdict(Action.RETRY)
# The same bytes fail the same way each time, so an endless loop ends here.
_RETRY_THREE_TIMES = Verdict(Action.RETRY, limit=3)
_GONE = Verdict(
    Action.FATAL,
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


def _at_first_fatal(hint: str) -> Mapping[Phase, Verdict]:
    """Fail where nothing has worked yet; later, allow for a rotation that is under way."""
    later = Verdict(Action.RETRY, hint, limit=10)
    return {
        Phase.SUBSCRIBE: Verdict(Action.FATAL, hint),
        Phase.RESUBSCRIBE: later,
        Phase.STREAM: later,
        Phase.DISCOVER: later,
    }


_RULES: Final[Mapping[str, Verdict | Mapping[Phase, Verdict]]] = {
    "ResourceNotFoundException": _GONE,
    # Another subscription of this consumer and shard is younger than 5 seconds, or took over.
    "ResourceInUseException": Verdict(Action.RETRY_AT_FLOOR),
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
    "InvalidArgumentException": Verdict(
        Action.FATAL,
        "the position is not one of this shard's, or its records have expired; start again from "
        "TRIM_HORIZON or a timestamp",
    ),
    "ValidationException": Verdict(Action.FATAL),
    "AccessDeniedException": _at_first_fatal(_ACCESS),
    "AccessDenied": _at_first_fatal(_ACCESS),
    "NotAuthorized": _at_first_fatal(_ACCESS),
    "ExpiredTokenException": _at_first_fatal(_CREDENTIALS),
    "ExpiredToken": _at_first_fatal(_CREDENTIALS),
    "UnrecognizedClientException": _at_first_fatal(_CREDENTIALS),
    "InvalidSignatureException": _at_first_fatal(_CREDENTIALS),
    "IncompleteSignature": _at_first_fatal(_CREDENTIALS),
    "RequestExpired": _at_first_fatal(_CREDENTIALS),
    "InvalidClientTokenId": _at_first_fatal(_CREDENTIALS),
    "MissingAuthenticationToken": _at_first_fatal(_CREDENTIALS),
    "OptInRequired": Verdict(Action.FATAL, "the account has no subscription to Kinesis"),
    "KMSThrottlingException": _RETRY,
    "KMSAccessDeniedException": Verdict(Action.FATAL, _KEY),
    "KMSDisabledException": Verdict(Action.FATAL, _KEY),
    "KMSInvalidStateException": Verdict(Action.FATAL, _KEY),
    "KMSNotFoundException": Verdict(Action.FATAL, _KEY),
    "KMSOptInRequired": Verdict(Action.FATAL, _KEY),
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


def judge(error: Exception, phase: Phase) -> Verdict:
    """Say what an error means.

    Args:
        error: Anything that connecting, listing or a subscription raised.
        phase: What was being done.
    """
    rule = _RULES.get(code_of(error) or "")
    match rule:
        case Verdict():
            return rule
        case None:
            return _judge_unnamed(error)
        case _:
            return rule[phase]


def _judge_unnamed(error: Exception) -> Verdict:
    match error:
        case MalformedEventError() | ResponseParserError():
            return _RETRY_THREE_TIMES
        case FanOutError():
            return _RETRY if error.retryable else Verdict(Action.FATAL)
        case ClientError():
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return _RETRY if status >= _SERVER_ERROR else Verdict(Action.FATAL)
        case NoCredentialsError() | PartialCredentialsError():
            return Verdict(Action.FATAL, _CREDENTIALS)
        case BotoCoreError() | aiohttp.ClientError() | OSError() if not isinstance(
            error, ParamValidationError
        ):
            return _RETRY
        case _:
            return Verdict(Action.FATAL, "an error that nobody expected here; please report it")


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
