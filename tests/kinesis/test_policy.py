from __future__ import annotations

import ssl
from types import MappingProxyType
from typing import TYPE_CHECKING

import aiohttp
import botocore.session
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from fanout.core.verdicts import Fatal, Pace, Phase, Retry
from fanout.errors import (
    FanOutError,
    MalformedEventError,
    RemoteError,
    ServiceError,
    SetupError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
)
from fanout.kinesis.policy import code_of, explain, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "https://kinesis.eu-west-1.amazonaws.com"

# What a person reads in the API reference, written down a second time: a code that the service's
# model gains fails a test until somebody has decided what it means.
RETRY = frozenset(
    {
        "ExpiredNextTokenException",
        "InternalFailure",
        "InternalFailureException",
        "KMSThrottlingException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "ThrottlingException",
    }
)
RETRY_AT_FLOOR = frozenset({"ResourceInUseException"})
FATAL = frozenset(
    {
        "InvalidArgumentException",
        "KMSAccessDeniedException",
        "KMSDisabledException",
        "KMSInvalidStateException",
        "KMSNotFoundException",
        "KMSOptInRequired",
        "OptInRequired",
        "ResourceNotFoundException",
        "ValidationException",
    }
)
FATAL_AT_FIRST = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "RequestExpired",
        "UnrecognizedClientException",
    }
)


def modelled_codes() -> Iterator[str]:
    """Yield each error that the calls of a running stream may have, by botocore's model."""
    model = botocore.session.get_session().get_service_model("kinesis")
    for name in ("SubscribeToShard", "ListShards"):
        yield from (shape.name for shape in model.operation_model(name).error_shapes)
    members = model.operation_model("SubscribeToShard").output_shape.members["EventStream"].members
    yield from (name for name, shape in members.items() if shape.metadata.get("exception"))


def refused(code: str, status: int = 400) -> ClientError:
    response = {
        "Error": {"Code": code, "Message": "no"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "SubscribeToShard")


def pace(verdict: Retry | Fatal) -> Pace | None:
    """Return how an error is retried; None where it is not."""
    return verdict.pace if isinstance(verdict, Retry) else None


def expected(code: str, phase: Phase) -> Pace | None:
    if code in RETRY or (code in FATAL_AT_FIRST and phase is not Phase.SUBSCRIBE):
        return Pace.JITTER
    return Pace.FLOOR if code in RETRY_AT_FLOOR else None


@pytest.mark.parametrize("code", sorted(set(modelled_codes())))
def test_every_code_of_the_services_model_has_been_decided_on(code: str) -> None:
    assert code in RETRY | RETRY_AT_FLOOR | FATAL | FATAL_AT_FIRST


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("code", sorted(RETRY | RETRY_AT_FLOOR | FATAL | FATAL_AT_FIRST))
def test_a_code_means_the_same_in_an_answer_and_in_a_stream(code: str, phase: Phase) -> None:
    assert pace(judge(refused(code), phase)) is expected(code, phase)
    assert judge(RemoteError(code, "no"), phase) == judge(refused(code), phase)


# ValidationException comes with a sentence of its own about a parameter.
@pytest.mark.parametrize("code", sorted((FATAL | FATAL_AT_FIRST) - {"ValidationException"}))
def test_a_fatal_code_tells_what_to_do(code: str) -> None:
    assert judge(refused(code), Phase.SUBSCRIBE).hint


@pytest.mark.parametrize("code", sorted(FATAL_AT_FIRST))
def test_a_permission_that_was_lost_is_waited_for_a_while(code: str) -> None:
    assert judge(refused(code), Phase.SUBSCRIBE, first=False) == judge(refused(code), Phase.STREAM)
    assert isinstance(verdict := judge(refused(code), Phase.STREAM), Retry)
    assert verdict.limit == 10


UNNAMED: MappingProxyType[str, tuple[Exception, Pace | None]] = MappingProxyType(
    {
        "a 5xx with a web page": (refused("502", 502), Pace.JITTER),
        "an unknown 5xx": (refused("Surprise", 500), Pace.JITTER),
        "an unknown 4xx": (refused("Surprise", 400), None),
        "no status": (ClientError({}, "SubscribeToShard"), None),
        "an unknown exception in the stream": (RemoteError("Surprise", ""), Pace.JITTER),
        "an answer that is no JSON": (ResponseParserError("no"), Pace.JITTER),
        "a damaged event": (MalformedEventError("no"), Pace.JITTER),
        "no answer": (SubscribeTimeoutError("no"), Pace.JITTER),
        "silence": (SubscriptionSilentError("no"), Pace.JITTER),
        "the ordinary end": (SubscriptionEndedError("no"), Pace.JITTER),
        "botocore cannot connect": (EndpointConnectionError(endpoint_url=URL), Pace.JITTER),
        "no answer to connecting": (ConnectTimeoutError(endpoint_url=URL), Pace.JITTER),
        "no answer to reading": (ReadTimeoutError(endpoint_url=URL), Pace.JITTER),
        "TLS": (SSLError(endpoint_url=URL, error="no"), Pace.JITTER),
        "TLS below botocore": (ssl.SSLError("no"), Pace.JITTER),
        "a closed connection": (ConnectionClosedError(endpoint_url=URL), Pace.JITTER),
        "a reset connection": (ConnectionResetError(), Pace.JITTER),
        "a body that is cut": (aiohttp.ClientPayloadError(), Pace.JITTER),
        "a socket without an answer": (aiohttp.SocketTimeoutError(), Pace.JITTER),
        "a disconnected server": (aiohttp.ServerDisconnectedError(), Pace.JITTER),
        "no name": (OSError(-2, "Name or service not known"), Pace.JITTER),
        "credentials that are late": (
            CredentialRetrievalError(provider="role", error_msg="no"),
            Pace.JITTER,
        ),
        "no credentials": (NoCredentialsError(), None),
        "half of the credentials": (
            PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
            None,
        ),
        "a parameter that is refused": (ParamValidationError(report="no"), None),
        "an error of ours that stays": (SetupError("no"), None),
        "a mistake in the code": (KeyError("no"), None),
    }
)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("what", UNNAMED)
def test_an_error_without_a_known_code_is_judged_by_its_kind(what: str, phase: Phase) -> None:
    error, expected = UNNAMED[what]
    assert pace(judge(error, phase)) is expected


@pytest.mark.parametrize("error", [MalformedEventError("no"), ResponseParserError("no")])
def test_damage_that_comes_three_times_at_one_place_stays(error: Exception) -> None:
    assert judge(error, Phase.STREAM) == Retry(limit=3)


def test_an_error_that_nobody_expected_says_so() -> None:
    assert "please report it" in judge(KeyError("no"), Phase.STREAM).hint


def test_a_refused_parameter_is_not_blamed_on_the_credentials() -> None:
    assert "credentials" not in judge(ParamValidationError(report="no"), Phase.STREAM).hint


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (refused("LimitExceededException"), "LimitExceededException"),
        (RemoteError("KMSDisabledException", ""), "KMSDisabledException"),
        (KeyError("no"), None),
    ],
)
def test_an_error_has_the_services_name(error: Exception, code: str | None) -> None:
    assert code_of(error) == code


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            refused("AccessDeniedException"),
            ServiceError,
            r"^the stream cannot be read: .*AccessDeniedException.* \(grant kinesis:Subscribe",
        ),
        (refused("Surprise"), ServiceError, r"^the stream cannot be read: .*\(Surprise\).*no$"),
        (NoCredentialsError(), SetupError, "^the stream cannot be read: no AWS credentials"),
        (ProfileNotFound(profile="x"), SetupError, r"profile \(x\) could not be .*check the AWS"),
        (
            ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRole"),
            ServiceError,
            r"AccessDenied.*\(check role_arn, and that the role trusts",
        ),
        *(
            (error, ServiceError, "the endpoint does not answer .* check the region, endpoint_url")
            for error in (
                EndpointConnectionError(endpoint_url=URL),
                ConnectTimeoutError(endpoint_url=URL),
                ReadTimeoutError(endpoint_url=URL),
                SSLError(endpoint_url=URL, error="no"),
                ConnectionClosedError(endpoint_url=URL),
                aiohttp.ServerDisconnectedError(),
                ConnectionRefusedError(),
            )
        ),
    ],
)
def test_an_error_is_explained_in_one_sentence(
    error: Exception, kind: type[FanOutError], sentence: str
) -> None:
    explained = explain(error, "the stream cannot be read")
    assert type(explained) is kind
    with pytest.raises(kind, match=sentence):
        raise explained
