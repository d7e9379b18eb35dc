"""Name the errors of Kinesis, and tell the user what to do about them."""

from __future__ import annotations

import errno
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
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from fanout.core.sentence import Sentence, in_brackets
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

TAKEN_OVER: Final = "ResourceInUseException"
"""How the service ends a live subscription that another one takes over."""

_SUBSCRIBE: Final = "SubscribeToShard"
_PUT: Final = "PutRecords"
# Calls whose resource is a consumer in the Service Authorization Reference of Kinesis Data Streams;
# that of all others is the stream.
_CONSUMER_CALLS: Final = frozenset(
    {_SUBSCRIBE, "DescribeStreamConsumer", "DeregisterStreamConsumer"}
)
# Calls that name a consumer, perhaps by its name.
_NAMES_CONSUMER: Final = frozenset({"DescribeStreamConsumer", "RegisterStreamConsumer"})
_SHARD_CALLS: Final = frozenset({"GetShardIterator", "GetRecords"})
# The service says so only of a resource of another account.
_OTHER_ACCOUNT: Final = "no resource-based policy allows"

_CREDENTIALS: Final = "check that the credentials are valid and this machine's clock is right"
_NO_CREDENTIALS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
_STREAM_GONE: Final = (
    "check the stream's name, its region and its account; it may have been deleted"
)
_CONSUMER_GONE: Final = "no consumer of the stream has that name or ARN; it may be deregistered"
_SHARD_GONE: Final = (
    "the stream or the shard is gone; check that the shard is within the retention period"
)
_ANY_GONE: Final = (
    "the stream, its consumer or the shard is gone; check that the consumer is still "
    "registered and that the shard is within the retention period"
)
_CHECK: Final = Sentence.of("; check the region, {endpoint_url} and the network")
_KMS: Final = "the KMS key of the stream"
_TLS: Final = (
    "check that the endpoint is the right one, and that this machine trusts its certificate: a "
    "proxy that opens TLS has one of its own, which AWS_CA_BUNDLE names"
)
_NO_FILE: Final = (
    "check the files that the AWS configuration of this machine names, such as AWS_CA_BUNDLE"
)
_OF_MACHINE: Final = "check the AWS configuration of this machine"
_LOCAL_LIMIT: Final = (
    "a limit of this machine or container, not a fault of the service: see `ulimit -a`, the "
    "limits of the unit or container, and its memory"
)
_LOCAL_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_NO_THREAD: Final = "can't start new thread"
_PAGES_EXPIRED: Final = "the listing took longer than its pages are kept; try again"

# What a code means whichever call it answers. InvalidArgumentException and ValidationException are
# not here: only their own sentence says which parameter is refused.
_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(BAD_CREDENTIALS, _CREDENTIALS),
    "ExpiredNextTokenException": _PAGES_EXPIRED,
    "OptInRequired": "the account has no subscription to Kinesis; check it and its payments",
    "KMSAccessDeniedException": (
        f"grant kms:Decrypt on {_KMS} through kinesis, in the reader's policy and, for a key of "
        "another account, in the key's"
    ),
    "KMSDisabledException": f"{_KMS} is disabled; enable it",
    "KMSInvalidStateException": (
        f"{_KMS} cannot be used in its state; if its deletion is pending, cancel that and enable it"
    ),
    "KMSNotFoundException": f"{_KMS} does not exist; check the key that the stream names",
    "KMSOptInRequired": f"the account that has {_KMS} has no subscription to KMS",
}
_PUT_DENIED: Final = "grant kinesis:PutRecords and kinesis:ListShards on the stream"
# What a code means as the answer to one call, before what it means in general.
_HINTS_OF_CALL: Final[Mapping[tuple[str, str], str]] = {
    **{(_PUT, code): _PUT_DENIED for code in ACCESS_DENIED},
    (_PUT, "KMSAccessDeniedException"): (
        f"grant kms:GenerateDataKey on {_KMS} through kinesis, in the writer's policy and, for a "
        "key of another account, in the key's"
    ),
    **{
        (call, "ResourceInUseException"): "the stream must be ACTIVE for this call; wait for it"
        for call in ("ListShards", "ListStreamConsumers", "RegisterStreamConsumer")
    },
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


def hint_of(error: BaseException) -> str:
    """Return what the user can do about an error, as a clause; empty if nothing is known."""
    match error:
        case ClientError() if error.operation_name.startswith("AssumeRole"):
            return _hint_of_role(error.operation_name, code_of(error) or "")
        case ClientError():
            return _hint_of_call(error.operation_name, code_of(error) or "", str(error))
        case RemoteError():
            return _hint_of_call(_SUBSCRIBE, error.code, str(error))
        case _:
            return _hint_without_code(error)


def _hint_without_code(error: BaseException) -> str:
    if hint := _hint_of_machine(error):
        return hint
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            return _NO_CREDENTIALS
        case CredentialRetrievalError():
            return "check the source of the credentials that it names"
        case SSLError():
            return _TLS
        case ProxyConnectionError():
            return _hint_of_proxy(error)
        case _:
            return ""


def _hint_of_machine(error: BaseException) -> str:
    """Return what to do about this machine; empty where it is not the reason."""
    inner = error.kwargs.get("error") if isinstance(error, HTTPClientError) else None
    if isinstance(inner or error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return _NO_FILE
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or getattr(seen, "errno", None) in _LOCAL_ERRNOS:
            return _LOCAL_LIMIT
        if isinstance(seen, RuntimeError) and _NO_THREAD in str(seen):
            return _LOCAL_LIMIT
        seen = seen.__cause__ or seen.__context__
    return ""


def _hint_of_proxy(error: ProxyConnectionError) -> str:
    refused = error.kwargs.get("error")
    match refused:
        case aiohttp.ClientHttpProxyError(status=status):
            host = refused.request_info.url.host
            return (
                f"it answers {status} to a connection to {host}: allow that host there, or name "
                f"it in NO_PROXY"
            )
        case ConnectionRefusedError(errno=None):  # by HTTP/2: the proxy's own answer
            return f"{refused}: allow that host there, or name it in NO_PROXY"
        case _:
            return "check HTTPS_PROXY and HTTP_PROXY, or name the endpoint's host in NO_PROXY"


def _hint_of_role(operation: str, code: str) -> str:
    if code in ACCESS_DENIED and operation == "AssumeRole":
        return Sentence.of(
            "check {role_arn}, and that the role trusts the credentials in use; its trust policy "
            "may ask for {external_id:an external_id}"
        )
    if code in ACCESS_DENIED:
        return "check that the role's trust policy allows the identity of this machine's token"
    return _CREDENTIALS if code in BAD_CREDENTIALS else ""


def _hint_of_call(operation: str, code: str, text: str) -> str:
    if code in ACCESS_DENIED and _OTHER_ACCOUNT in text:
        return _grant_across_accounts(operation)
    if code == "ResourceNotFoundException":
        return _gone(operation)
    if hint := _HINTS_OF_CALL.get((operation, code)):
        return hint
    return _grant(operation) if code in ACCESS_DENIED else _HINTS.get(code, "")


def _gone(operation: str) -> str:
    """Say what a call has named that does not exist."""
    if operation == _SUBSCRIBE:
        return _ANY_GONE
    if operation in _SHARD_CALLS:
        return _SHARD_GONE
    return _CONSUMER_GONE if operation in _CONSUMER_CALLS else _STREAM_GONE


def _grant(operation: str) -> str:
    resource = _resource(operation)
    tagging = ""
    if operation == "RegisterStreamConsumer":
        tagging = " (with tags, also kinesis:TagResource on the consumer)"
    return (
        f"grant kinesis:{operation} on the {resource}{tagging}; `fanout iam-policy` writes "
        f"down all that a reader needs"
    )


def _grant_across_accounts(operation: str) -> str:
    resource = _resource(operation)
    policy = f"a resource policy of the {resource} must allow kinesis:{operation}"
    if operation not in _NAMES_CONSUMER:
        return f"the stream belongs to another account: {policy}"
    return (
        f"the stream belongs to another account: its owner registers the consumer, and {policy}; "
        f"give the consumer's ARN, since one that is given by name may have to be registered"
    )


def _resource(operation: str) -> str:
    return "consumer" if operation in _CONSUMER_CALLS else "stream"


def explain(error: Exception, doing: str) -> FanOutError:
    """Turn an error of the service, the network or this machine into one sentence for the user.

    `doing` is the purpose of the call, as a clause: `"the stream 'orders' cannot be described"`.
    """
    kind: type[FanOutError] = ServiceError
    hint = hint_of(error)
    text = Sentence(error, in_brackets(hint))
    match error:
        case _ if _hint_of_machine(error):
            kind = SetupError
        case NoCredentialsError() | PartialCredentialsError():
            kind = SetupError
            text = Sentence(f"no AWS credentials were found; {_NO_CREDENTIALS}")
        case ClientError() | RemoteError() | ResponseParserError():
            pass
        case ProxyConnectionError() | SSLError():
            pass
        case EndpointConnectionError() | HTTPClientError() | aiohttp.ClientError() | OSError():
            text = Sentence("the endpoint does not answer", in_brackets(text), _CHECK)
        case BotoCoreError() if not isinstance(error, ParamValidationError):
            kind = SetupError
            text = Sentence(error, in_brackets(hint or _OF_MACHINE))
        case _:
            kind = FanOutError
            report = " (an unexpected error; please report it)"
            text = Sentence(f"{type(error).__name__}: ", text, report)
    return kind(f"{doing}: ", text)


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn the errors of the block into one sentence each; a FanOutError passes unchanged."""
    try:
        yield
    except FanOutError:
        raise
    except Exception as error:
        raise explain(error, doing) from error
