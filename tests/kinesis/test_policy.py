from __future__ import annotations

import re
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

from fanout.core.policy import Fatal, Pace, Phase, Retry
from fanout.errors import (
    BadRowsError,
    DamagedFrameError,
    FanOutError,
    MalformedEventError,
    RemoteError,
    RetryLaterError,
    ServiceError,
    SetupError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
    UnconfirmedEndError,
    WriteTimeoutError,
)
from fanout.kinesis.aws.error_hints import code_of, explain, hint_of
from fanout.kinesis.policy import KinesisRemedy, Treatment, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "https://kinesis.eu-west-1.amazonaws.com"

# The answers of the API, written down a second time: what each code means before anything of its
# phase has worked, in a later subscribe call, inside the stream, and in a listing. A code that the
# service's model gains fails a test until it has a row in the table.
Means = Pace | type[Fatal] | KinesisRemedy
PASSING = (Pace.JITTER,) * 4
TAKEN = (Pace.FLOOR,) * 4
GONE = (KinesisRemedy.FIND_CAUSE, KinesisRemedy.FIND_CAUSE, KinesisRemedy.FIND_CAUSE, Fatal)
PLACE = (KinesisRemedy.DATA_LOSS, KinesisRemedy.DATA_LOSS, KinesisRemedy.DATA_LOSS, Fatal)
ACCESS = (Fatal, KinesisRemedy.REFRESH, KinesisRemedy.REFRESH, KinesisRemedy.REFRESH)
BLOCKED = (Fatal, Pace.SLOW, Pace.SLOW, Pace.SLOW)
REFUSED = (Fatal,) * 4
UNKNOWN = (Fatal, Pace.JITTER, Pace.JITTER, Pace.JITTER)
HALF_AN_END = (KinesisRemedy.CONFIRM_END,) * 4

CODES: MappingProxyType[str, tuple[Means, ...]] = MappingProxyType(
    {
        "AccessDenied": ACCESS,
        "AccessDeniedException": ACCESS,
        "ExpiredIteratorException": PASSING,
        "ExpiredNextTokenException": PASSING,
        "ExpiredToken": ACCESS,
        "ExpiredTokenException": ACCESS,
        "IDPCommunicationError": PASSING,
        "IncompleteSignature": ACCESS,
        "InternalFailure": PASSING,
        "InternalFailureException": PASSING,
        "InvalidArgumentException": PLACE,
        "InvalidClientTokenId": ACCESS,
        "InvalidSignatureException": ACCESS,
        "KMSAccessDeniedException": BLOCKED,
        "KMSDisabledException": BLOCKED,
        "KMSInvalidStateException": BLOCKED,
        "KMSNotFoundException": BLOCKED,
        "KMSOptInRequired": BLOCKED,
        "KMSThrottlingException": PASSING,
        "LimitExceededException": PASSING,
        "MissingAuthenticationToken": ACCESS,
        "NotAuthorized": ACCESS,
        "OptInRequired": BLOCKED,
        "ProvisionedThroughputExceededException": PASSING,
        "RequestExpired": ACCESS,
        "RequestLimitExceeded": PASSING,
        "RequestThrottled": PASSING,
        "RequestThrottledException": PASSING,
        "RequestTimeout": PASSING,
        "RequestTimeoutException": PASSING,
        "ResourceInUseException": TAKEN,
        "ResourceNotFoundException": GONE,
        "ServiceUnavailable": PASSING,
        "SlowDown": PASSING,
        "ThrottledException": PASSING,
        "Throttling": PASSING,
        "ThrottlingException": PASSING,
        "TooManyRequestsException": PASSING,
        "UnrecognizedClientException": ACCESS,
        "ValidationException": REFUSED,
    }
)
PHASES = (Phase.SUBSCRIBE, Phase.STREAM, Phase.DISCOVER)


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


def meaning(error: Exception) -> tuple[Means, ...]:
    """Return what an error means at first, and later in each phase."""
    at_first = {judge(error, phase, first=True) for phase in PHASES}
    assert len(at_first) == 1
    later = [judge(error, phase, first=False) for phase in PHASES]
    return tuple(_kind(treatment) for treatment in (*at_first, *later))


def _kind(treatment: Treatment) -> Means:
    match treatment:
        case Retry(pace=pace):
            return pace
        case Fatal():
            return Fatal
        case KinesisRemedy():
            return treatment


@pytest.mark.parametrize("code", sorted(set(modelled_codes())))
def test_every_code_of_the_services_model_has_been_decided_on(code: str) -> None:
    assert code in CODES


@pytest.mark.parametrize("code", CODES)
def test_a_code_means_the_same_in_an_answer_and_in_a_stream(code: str) -> None:
    assert meaning(refused(code)) == CODES[code]
    assert meaning(RemoteError(code, "no")) == CODES[code]


@pytest.mark.parametrize("code", [code for code in CODES if CODES[code] not in (PASSING, TAKEN)])
def test_a_code_that_does_not_pass_by_itself_tells_what_to_do(code: str) -> None:
    # These two come with a sentence of their own about a parameter.
    own = {"InvalidArgumentException", "ValidationException"}
    assert bool(hint_of(refused(code))) is (code not in own)


@pytest.mark.fault("Each kind of error has a budget of its own")
@pytest.mark.parametrize("code", [code for code in CODES if CODES[code] in (ACCESS, BLOCKED)])
def test_what_has_worked_is_asked_for_as_often_as_it_takes(code: str) -> None:
    for phase in PHASES:
        treatment = judge(refused(code), phase, first=False)
        assert treatment is KinesisRemedy.REFRESH or treatment == Retry(
            Pace.SLOW, hint=hint_of(refused(code))
        )


@pytest.mark.fault("A permission is missing: the error names the action to grant")
@pytest.mark.parametrize(
    ("operation", "hint"),
    [
        ("SubscribeToShard", "grant kinesis:SubscribeToShard on the consumer; "),
        ("DescribeStreamConsumer", "grant kinesis:DescribeStreamConsumer on the consumer; "),
        ("ListShards", "grant kinesis:ListShards on the stream; "),
        (
            "RegisterStreamConsumer",
            (
                "grant kinesis:RegisterStreamConsumer on the stream (with tags, also "
                "kinesis:TagResource on the consumer); "
            ),
        ),
    ],
)
def test_a_denied_call_names_the_action_that_is_missing(operation: str, hint: str) -> None:
    for code in ("AccessDeniedException", "AccessDenied", "NotAuthorized"):
        assert hint_of(ClientError({"Error": {"Code": code}}, operation)).startswith(hint)
    assert hint_of(RemoteError("AccessDeniedException", "")).startswith("grant kinesis:Subscribe")


@pytest.mark.parametrize(
    ("operation", "hint"),
    [
        ("ListShards", "check the stream's name, its region"),
        ("DescribeStreamSummary", "check the stream's name, its region"),
        ("SubscribeToShard", "the stream, its consumer or the shard is gone"),
    ],
)
def test_what_is_not_found_is_told_by_what_the_call_names(operation: str, hint: str) -> None:
    error = ClientError({"Error": {"Code": "ResourceNotFoundException"}}, operation)
    assert hint_of(error).startswith(hint)


@pytest.mark.parametrize(
    ("code", "what_to_do"),
    [
        ("KMSAccessDeniedException", "kms:Decrypt .* through kinesis"),
        ("KMSDisabledException", "enable it"),
        ("KMSInvalidStateException", "deletion is pending, cancel that"),
        ("KMSNotFoundException", "does not exist"),
        ("KMSOptInRequired", "no subscription to KMS"),
    ],
)
def test_the_state_of_the_key_is_told_with_what_to_do(code: str, what_to_do: str) -> None:
    assert re.search(what_to_do, hint_of(RemoteError(code, "")))


UNNAMED: MappingProxyType[str, tuple[Exception, tuple[Means, ...]]] = MappingProxyType(
    {
        "a 5xx with a web page": (refused("502", 502), PASSING),
        "an unknown 5xx": (refused("Surprise", 500), PASSING),
        "an unknown 4xx": (refused("Surprise", 400), UNKNOWN),
        "a proxy that is full": (refused("429", 429), PASSING),
        "a proxy that waits no longer": (refused("408", 408), PASSING),
        "no status": (ClientError({}, "SubscribeToShard"), UNKNOWN),
        "an unknown exception in the stream": (RemoteError("Surprise", ""), UNKNOWN),
        "an answer that is no JSON": (ResponseParserError("no"), PASSING),
        "a damaged event": (MalformedEventError("no"), PASSING),
        "a damaged frame": (DamagedFrameError("no"), (KinesisRemedy.DROP_FRAME,) * 4),
        "half an end": (UnconfirmedEndError("no"), HALF_AN_END),
        "no answer": (SubscribeTimeoutError("no"), PASSING),
        "silence": (SubscriptionSilentError("no"), PASSING),
        "the ordinary end": (SubscriptionEndedError("no"), TAKEN),
        "botocore cannot connect": (EndpointConnectionError(endpoint_url=URL), PASSING),
        "no answer to connecting": (ConnectTimeoutError(endpoint_url=URL), PASSING),
        "no answer to reading": (ReadTimeoutError(endpoint_url=URL), PASSING),
        "TLS": (SSLError(endpoint_url=URL, error="no"), PASSING),
        "TLS below botocore": (ssl.SSLError("no"), PASSING),
        "a closed connection": (ConnectionClosedError(endpoint_url=URL), PASSING),
        "a reset connection": (ConnectionResetError(), PASSING),
        "a body that is cut": (aiohttp.ClientPayloadError(), PASSING),
        "a socket without an answer": (aiohttp.SocketTimeoutError(), PASSING),
        "a disconnected server": (aiohttp.ServerDisconnectedError(), PASSING),
        "no name": (OSError(-2, "Name or service not known"), PASSING),
        "credentials that are late": (
            CredentialRetrievalError(provider="role", error_msg="no"),
            ACCESS,
        ),
        "no credentials": (NoCredentialsError(), ACCESS),
        "half of the credentials": (
            PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
            ACCESS,
        ),
        "a parameter that is refused": (ParamValidationError(report="no"), REFUSED),
        "an error of ours that stays": (SetupError("no"), REFUSED),
        "a mistake in the code": (KeyError("no"), REFUSED),
    }
)


@pytest.mark.parametrize("what", UNNAMED)
def test_an_error_without_a_known_code_is_judged_by_its_kind(what: str) -> None:
    error, expected = UNNAMED[what]
    assert meaning(error) == expected


@pytest.mark.parametrize("error", [refused("Surprise"), RemoteError("Surprise", "")])
def test_a_code_that_nobody_knows_is_to_be_reported_and_retried_for_a_while(
    error: Exception,
) -> None:
    at_first, later = (judge(error, Phase.SUBSCRIBE, first=first) for first in (True, False))
    assert isinstance(at_first, Fatal)
    assert isinstance(later, Retry)
    assert "please report it" in at_first.hint
    assert later.hint == at_first.hint
    assert later.limit == 40


def subclasses(kind: type[FanOutError]) -> Iterator[type[FanOutError]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_error_of_ours_is_judged_as_it_says_of_itself() -> None:
    ours = [each for each in subclasses(FanOutError) if each.__module__ == "fanout.errors"]
    ours.remove(WriteTimeoutError)  # no reader raises it
    ours.remove(RetryLaterError)  # the subscriber waits, and does not subscribe again
    ours.remove(BadRowsError)  # it is about rows, and the bad ones are left out or end the stream
    for kind in ours:
        error = kind("no", "no") if kind is RemoteError else kind("no")
        assert isinstance(judge(error, Phase.STREAM, first=False), Fatal) is not kind.retryable


@pytest.mark.parametrize("error", [MalformedEventError("no"), ResponseParserError("no")])
def test_damage_that_comes_three_times_at_one_place_stays(error: Exception) -> None:
    assert judge(error, Phase.STREAM) == Retry(limit=3)


def test_an_error_that_nobody_expected_says_so() -> None:
    assert isinstance(verdict := judge(KeyError("no"), Phase.STREAM), Fatal)
    assert "please report it" in verdict.hint


def test_a_refused_parameter_is_not_blamed_on_the_credentials() -> None:
    assert "credentials" not in hint_of(ParamValidationError(report="no"))


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
