from __future__ import annotations

import ast
import math
import pickle  # noqa: TID251 - our own bytes
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest

from fanout.core.backoff import Backoff
from fanout.core.event_time import EventTime
from fanout.core.positions import Cursor, Horizon, Latest, Timestamp
from fanout.core.starts import PerSplit, parse_start
from fanout.errors import OptionError
from fanout.kinesis import KinesisSource
from fanout.kinesis.starting_position import DIALECT
from tests.support.pages import page

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM_ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
CONSUMER_ARN = f"{STREAM_ARN}/consumer/etl:1700000000"
CANARY = "canary-secret"
ROLE = "arn:aws:iam::111122223333:role/reader"


def source(**options: Any) -> KinesisSource:
    return KinesisSource(**{"stream": "orders", "consumer": "etl"} | options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stream": None}, "stream must be a string or a sequence of strings, not NoneType"),
        ({"consumer": 7}, "consumer must be a string, not int"),
        ({"region": 7}, "region must be a string"),
        ({"endpoint_url": b"https://a"}, "endpoint_url must be a string, not bytes"),
        ({"role_arn": 7}, "role_arn must be a string"),
        ({"external_id": 7}, "external_id must be a string, not int"),
        ({"role_session_name": 7}, "role_session_name must be a string, not int"),
        ({"external_id": "a-7"}, "external_id is for the role of role_arn: set role_arn, or leave"),
        (
            {"role_session_name": "etl"},
            "role_session_name is for the role of role_arn: set role_arn, or leave role_session",
        ),
        ({"role_arn": ROLE, "role_session_name": "e"}, "role_session_name='e' must be 2 to 64 let"),
        ({"role_arn": ROLE, "role_session_name": "a/b"}, r"_ \+ = , \. @ -$"),
        ({"role_arn": ROLE, "role_session_name": "a" * 65}, "must be 2 to 64"),
        (
            {"role_arn": ROLE, "role_session_name": "\N{GREEK SMALL LETTER MU}" * 9},
            "must be 2 to 64",
        ),
        (
            {"role_arn": ROLE, "external_id": "e"},
            "external_id must be 2 to 1224 letters, digits",
        ),
        ({"role_arn": ROLE, "external_id": "a" * 1225}, "external_id must be 2 to 1224"),
        ({"role_arn": ROLE, "external_id": "a b"}, r"_ \+ = , \. @ : / -$"),
        ({"stream": ""}, r"stream='' is neither a stream's name .* nor its ARN"),
        ({"stream": "a b"}, r"stream='a b' is neither"),
        ({"stream": "a" * 129}, r"is neither a stream's name \(1 to 128 of"),
        ({"stream": "orders\n"}, r"stream='orders\\n' is neither"),
        ({"stream": STREAM_ARN + "/"}, "is neither a stream's name"),
        ({"stream": CONSUMER_ARN}, "is neither a stream's name"),
        ({"stream": "arn:aws:sqs:eu-west-1:111122223333:orders"}, "is neither a stream's name"),
        ({"consumer": ""}, r"consumer='' is neither a consumer's name .* nor its ARN"),
        ({"consumer": "a/b"}, r"consumer='a/b' is neither"),
        ({"consumer": STREAM_ARN}, "is neither a consumer's name"),
        (
            {"stream": "payments", "consumer": CONSUMER_ARN},
            rf"consumer {CONSUMER_ARN} is registered on the stream {STREAM_ARN}, not on payments",
        ),
        (
            {"stream": STREAM_ARN.replace("eu-west-1", "us-east-1"), "consumer": CONSUMER_ARN},
            "is registered on the stream .*eu-west-1.*, not on .*us-east-1",
        ),
        ({"stream": STREAM_ARN, "region": "us-east-1"}, "region='us-east-1' contradicts the ARN"),
        ({"consumer": CONSUMER_ARN, "region": "us-east-1"}, "region='us-east-1' contradicts"),
        ({"tags": ["team"]}, r"tags=\['team'\] must be a mapping of strings to strings"),
        ({"tags": {str(key): "" for key in range(51)}}, "tags has 51 entries; .* at most 50"),
        ({"tags": {"": "x"}}, r"the tag key '' must be 1 to 128 letters"),
        ({"tags": {"k" * 129: "x"}}, r"must be 1 to 128 letters"),
        ({"tags": {1: "x"}}, r"the tag key 1 must be 1 to 128 letters"),
        ({"tags": {"a;b": "x"}}, r"the tag key 'a;b' must be 1 to 128 letters"),
        ({"tags": {"aws:x": "x"}}, r"the tag key 'aws:x' begins with aws:, which AWS reserves"),
        ({"tags": {"team": "x" * 257}}, r"of the tag 'team' must be at most 256 letters"),
        ({"tags": {"team": None}}, r"the value None of the tag 'team' must be at most 256"),
        ({"tags": {"a": "b"}, "consumer": CONSUMER_ARN}, "^tags is for a consumer that is reg"),
        ({"deregister": "always"}, r"deregister='always' is not understood; use 'never' or"),
        ({"on_bad_frame": "skip"}, r"on_bad_frame='skip' is not .*; use 'fail' or 'gap'"),
        ({"on_bad_aggregate": "skip"}, r"on_bad_aggregate='skip' is not .*; use 'fail' or 'gap'"),
        (
            {"deregister": "on_close", "consumer": CONSUMER_ARN},
            rf"^deregister is for .*; {CONSUMER_ARN} exists already, so name the consumer",
        ),
        ({"mode": "EFO"}, r"mode='EFO' is not understood; use 'efo' or 'polling'"),
        (
            {"consumer": None},
            r"needs a consumer: name one, or pass mode='polling'",
        ),
        ({"mode": "polling", "consumer": "a/b"}, r"consumer='a/b' is neither"),
        ({"mode": "polling", "consumer": CONSUMER_ARN, "tags": {"a": "b"}}, "^tags is for a cons"),
        ({"start": datetime(2024, 1, 1)}, "no time zone; pass an aware datetime"),  # noqa: DTZ001 - it is refused
        ({"start": datetime(1969, 1, 1, tzinfo=UTC)}, "lies before 1970"),
        ({"start": 1_700_000_000}, r"start=1700000000 is not understood; use 'TRIM_HORIZON'"),
        ({"start": "newest"}, r"start='newest' is not understood; use .* or an aware datetime"),
        ({"start": None}, r"start=None is not understood"),
        ({"on_data_loss": "latest"}, r"on_data_loss='latest' is not understood; use 'fail' or"),
        ({"start": {"shard": 42}}, r"start\['shard'\]=42 is not understood"),
        ({"subscribe_timeout": 0}, r"subscribe_timeout=0 must be more than 0 seconds"),
        ({"silence_timeout": -1.0}, r"silence_timeout=-1.0 must be more than 0 seconds"),
        ({"silence_timeout": math.nan}, r"silence_timeout=nan must be more than 0 seconds"),
        ({"discovery_interval": math.inf}, r"discovery_interval=inf must be more than 0 seconds"),
        ({"subscribe_timeout": "60"}, r"subscribe_timeout='60' must be a number"),
        ({"backoff": 1}, r"backoff=1 must be a fanout\.Backoff"),
        ({"max_retries": "3"}, r"max_retries='3' must be a whole number, or None"),
        ({"max_event_bytes": 1e6}, r"max_event_bytes=1000000.0 must be a whole number"),
        ({"max_bytes_in_flight": True}, r"max_bytes_in_flight=True must be a whole number"),
        ({"endpoint_url": "ftp://127.0.0.1"}, r"endpoint_url must begin with https://"),
        ({"endpoint_url": "http://kinesis.example"}, r"would be used without TLS"),
        ({"endpoint_url": "https://me:canary@kinesis.example"}, r"must not hold a user or"),
        ({"discovery_interval": 0.0}, r"discovery_interval=0.0 must be more than 0 seconds"),
        ({"max_retries": -1}, r"max_retries=-1 must be 0 or more, or None"),
        ({"max_event_bytes": 0}, r"max_event_bytes=0 must be at least 1 and at most"),
        (
            {"max_event_bytes": 2048, "max_bytes_in_flight": 1024},
            r"max_event_bytes=2048 must be .* at most max_bytes_in_flight=1024",
        ),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        source(**options)


def test_the_credentials_of_a_refused_endpoint_are_in_no_message() -> None:
    with pytest.raises(OptionError) as reported:
        source(endpoint_url="https://me:canary@kinesis.example")
    assert "canary" not in str(reported.value)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="'silence_timout'"):
        source(silence_timout=1.0)


def test_options_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        KinesisSource("orders", "etl")  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize(
    ("options", "region"),
    [
        ({}, None),
        ({"region": "eu-west-1"}, "eu-west-1"),
        ({"stream": STREAM_ARN}, "eu-west-1"),
        ({"consumer": CONSUMER_ARN}, "eu-west-1"),
        ({"stream": STREAM_ARN, "consumer": CONSUMER_ARN, "region": "eu-west-1"}, "eu-west-1"),
        (
            {"stream": "arn:aws-us-gov:kinesis:us-gov-west-1:111122223333:stream/orders"},
            "us-gov-west-1",
        ),
    ],
)
def test_the_region_is_that_of_an_arn_or_the_one_that_is_named(
    options: dict[str, Any], region: str | None
) -> None:
    assert source(**options).resolved_region == region


@pytest.mark.parametrize(
    ("start", "parsed"),
    [
        ("TRIM_HORIZON", Horizon()),
        ("LATEST", Latest()),
        (datetime(2024, 1, 1, tzinfo=UTC), Timestamp(1_704_067_200_000)),
        (Horizon(), Horizon()),
        ({"shard": "42", "*": "LATEST"}, PerSplit((("shard", Cursor(42)),), Latest())),
    ],
)
def test_a_start_is_stored_in_one_form(start: Any, parsed: Any) -> None:
    assert source(start=start).start == parsed


def test_the_event_time_is_when_a_record_arrived_unless_a_column_is_named() -> None:
    assert source().event_time is None
    arrival = EventTime("approximateArrivalTimestamp", idleness=60)
    assert source(event_time=EventTime(idleness=60)).event_time == arrival
    assert source(event_time=arrival).event_time == arrival


@pytest.mark.parametrize(
    ("event_time", "error"),
    [
        (EventTime("data"), "the column 'data' is of binary, which is no timestamp"),
        (EventTime("timestamp"), "there is no column 'timestamp'; there are partitionKey, data"),
        (60, "event_time=60 must be an EventTime, or None"),
        ("approximateArrivalTimestamp", "must be an EventTime, or None"),
    ],
)
def test_an_event_time_that_cannot_be_told_is_refused(event_time: Any, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        source(event_time=event_time)


def test_a_source_names_no_secret() -> None:
    session = aioboto3.Session(aws_access_key_id=CANARY, aws_secret_access_key=CANARY)
    assert CANARY not in repr(source(session=session))
    assert "session=" not in repr(source(session=session))


def test_an_external_id_is_shown_nowhere() -> None:
    made = source(role_arn=ROLE, external_id=CANARY)
    assert made.role is not None
    assert made.role.external_id == CANARY
    assert CANARY not in repr(made) + repr(made.role)
    for wrong in ({"external_id": CANARY}, {"role_arn": ROLE, "external_id": CANARY + " "}):
        with pytest.raises(OptionError) as refused:
            source(**wrong)
        assert CANARY not in str(refused.value)


def test_the_session_is_no_part_of_what_a_source_is() -> None:
    one = source(session=aioboto3.Session(aws_access_key_id="a", aws_secret_access_key="b"))
    assert one == source()
    assert hash(one) == hash(source())


def test_a_source_is_a_value() -> None:
    start = {"shardId-000000000000": "42", "*": "TRIM_HORIZON"}
    options: dict[str, Any] = {"start": start, "max_retries": 3, "region": "eu-west-1"}
    one, same, other = source(**options), source(**options), source(**options | {"max_retries": 4})
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert eval(repr(one)) == one  # noqa: S307 - our own repr


@pytest.mark.parametrize(
    "start", [datetime(2024, 1, 1, tzinfo=UTC), {"a": "42", "*": "LATEST"}], ids=repr
)
def test_a_source_can_be_pickled(start: Any) -> None:
    one = source(start=start)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own bytes


def test_a_source_does_not_change() -> None:
    with pytest.raises(AttributeError):
        source().stream = "payments"  # type: ignore[misc]


def test_the_pacing_is_made_of_the_options_and_the_rules_of_the_service() -> None:
    pacing = source(
        subscribe_timeout=1,
        silence_timeout=2,
        discovery_interval=3,
        backoff=Backoff(base=4, cap=5, power=6),
        max_retries=7,
        max_event_bytes=8,
        max_bytes_in_flight=9,
    ).pacing
    assert (pacing.floor, pacing.spacing) == (1.0, 5.0)
    assert (pacing.subscribe_timeout, pacing.silence_timeout, pacing.discovery_interval) == (
        1,
        2,
        3,
    )
    assert (pacing.backoff.base, pacing.backoff.cap, pacing.backoff.power) == (4, 5, 6)
    assert (pacing.max_retries, pacing.max_bytes_in_flight) == (7, 9)


def test_polling_needs_no_consumer_and_leaves_one_that_is_named_alone() -> None:
    assert source(mode="polling", consumer=None).consumer is None
    assert source(mode="polling", tags={"team": "etl"}, deregister="on_close").consumer == "etl"


def test_the_pacing_of_polling_is_that_of_get_records() -> None:
    pacing = source(mode="polling", subscribe_timeout=1.0, silence_timeout=2.0).pacing
    assert (pacing.floor, pacing.spacing) == (0.2, 0.0)
    # A shard may rest for 5 seconds before a call, which is no silence of the service.
    assert (pacing.subscribe_timeout, pacing.silence_timeout) == (6.0, 7.0)


def documented_defaults() -> Iterator[tuple[str, Any]]:
    """Read the table of the page: a row may list several options, and a value its unit."""
    (table,) = re.findall(r"\| option \| default \| \|\n(.+?)\n\n", page("kinesis.md"), re.DOTALL)
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \|", table, re.MULTILINE)
    for names, values in rows:
        options = re.findall(r"`(\w+)`", names)
        written = re.split(r", (?![^()]*\))", values)
        for option, value in zip(options, written * len(options), strict=False):
            yield option, _read_value(value)


def _read_value(text: str) -> Any:
    if text.startswith("`Backoff("):
        return eval(text.strip("`"), {"Backoff": Backoff})  # noqa: S307 - the page is ours
    match text.strip("`").split():
        case ["None" | "False" | "{}" | '"never"' | '"fail"' | '"efo"' as literal]:
            return ast.literal_eval(literal)
        case [number, "MiB"]:
            return int(number) * 1024 * 1024
        case [number] | [number, "s"] if number.replace(".", "", 1).isdigit():
            return float(number)
        case _:
            return parse_start(text.strip('`"'), DIALECT)


def test_the_page_documents_every_option_with_its_default() -> None:
    one = source()
    documented = dict(documented_defaults())
    assert documented == {
        name: getattr(one, name)
        for name in KinesisSource.__dataclass_fields__
        if name not in {"stream", "consumer"}
    }


def test_tags_are_copied() -> None:
    tags = {"team": "orders"}
    made = source(tags=tags)
    tags.clear()
    assert made.tags == {"team": "orders"}
