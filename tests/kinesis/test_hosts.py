"""The hosts that the calls of Kinesis go to are those that the page lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest

from fanout.kinesis.aws import client as aws_client

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.usefixtures("aws", "usual_hosts")

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
ACCOUNT = "111122223333"
REGION = "eu-west-1"
ARN = f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/orders"
CONSUMER = f"{ARN}/consumer/etl:1"
POSITION = {"Type": "LATEST"}

# What the client of a reader or writer sends, without the stream.
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "describe_stream_summary": {},
    "list_shards": {},
    "put_records": {"Records": [{"Data": b"", "PartitionKey": "k"}]},
    "describe_stream_consumer": {"StreamARN": ARN, "ConsumerName": "etl"},
    "register_stream_consumer": {"StreamARN": ARN, "ConsumerName": "etl"},
    "deregister_stream_consumer": {"ConsumerARN": CONSUMER},
    "list_stream_consumers": {"StreamARN": ARN},
    "subscribe_to_shard": {
        "ConsumerARN": CONSUMER,
        "ShardId": "shardId-000000000000",
        "StartingPosition": POSITION,
    },
    "get_shard_iterator": {
        "StreamARN": ARN,
        "ShardId": "shardId-000000000000",
        "ShardIteratorType": "LATEST",
    },
    "get_records": {"StreamARN": ARN, "ShardIterator": "x"},
}
OF_A_STREAM = {"describe_stream_summary", "list_shards", "put_records"}


class _NotSentError(Exception):
    """A request is not sent; the text is its host."""


def listed() -> dict[str, tuple[str, str]]:
    """Return the hosts of each call, for a name and for an ARN, as the page has them."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and "amazonaws.com" in cells[1]:
            by_name, by_arn = (cell.strip("`") for cell in cells[1:])
            for call in re.findall(r"`([A-Z][A-Za-z]+)`", cells[0]):
                found[call] = by_name, by_arn
    return found


def host_of(service: str, method: str, **parameters: Any) -> tuple[str, str]:
    """Return the name of a call, and the host that it is sent to; nothing is sent."""
    session = botocore.session.Session()
    session.set_credentials("testing", "testing")
    client = session.create_client(service, region_name=REGION)

    def refuse(request: Any, **_: Any) -> None:
        raise _NotSentError(request.url.split("/")[2])

    client.meta.events.register("before-send", refuse)
    with pytest.raises(_NotSentError) as raised:
        getattr(client, method)(**parameters)
    host = str(raised.value).replace(ACCOUNT, "ACCOUNT").replace(REGION, "REGION")
    return client.meta.method_to_api_mapping[method], host


@pytest.mark.long
@pytest.mark.parametrize("method", PARAMETERS)
@pytest.mark.parametrize("by_arn", [False, True])
def test_a_call_goes_to_the_host_that_the_page_lists(
    method: str,
    by_arn: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    stream = {"StreamARN": ARN} if by_arn else {"StreamName": "orders"}
    named = stream if method in OF_A_STREAM else {}
    call, host = host_of("kinesis", method, **PARAMETERS[method], **named)
    assert listed()[call][by_arn] == host


def test_later_pages_of_a_listing_go_to_the_host_of_the_region() -> None:
    _, host = host_of("kinesis", "list_shards", NextToken="x")
    assert host == "kinesis.REGION.amazonaws.com"


def test_a_role_is_assumed_at_the_host_that_the_page_lists() -> None:
    call, host = host_of("sts", "assume_role", RoleArn="a" * 20, RoleSessionName="fanout")
    assert listed()[call] == (host, host)


def test_the_page_lists_every_call_that_is_made() -> None:
    made = set(
        re.findall(
            r"self\._(?:control|reading)\.([a-z_]+)\(", Path(aws_client.__file__).read_text()
        )
    )
    assert made == set(PARAMETERS)
    assert len(listed()) == len(PARAMETERS) + 1  # AssumeRole
