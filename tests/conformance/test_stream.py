"""Test how a stream is described: pages of shards, its mode, and pages that cannot be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fanout.kinesis.aws.error_hints import code_of
from tests.conformance.service import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.service import Service


async def ask(call: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await asyncio.to_thread(call, **arguments)
    return answer


async def test_a_stream_is_described_in_pages_of_shards(service: Service) -> None:
    listed = (await ask(service.client.list_shards, StreamARN=service.arn))["Shards"]
    found: list[str] = []
    more = True
    while more:
        after = {"ExclusiveStartShardId": found[-1]} if found else {}
        answer = await ask(service.client.describe_stream, StreamARN=service.arn, Limit=1, **after)
        description = answer["StreamDescription"]
        found += [shard["ShardId"] for shard in description["Shards"]]
        more = description["HasMoreShards"]
        assert len(description["Shards"]) == 1
    assert found == [shard["ShardId"] for shard in listed]


async def test_a_stream_has_the_same_mode_and_arn_in_both_descriptions(service: Service) -> None:
    described = await ask(service.client.describe_stream, StreamARN=service.arn)
    summary = await ask(service.client.describe_stream_summary, StreamARN=service.arn)
    names = ("StreamName", "StreamARN", "StreamStatus", "StreamModeDetails", "EncryptionType")
    known = [described["StreamDescription"][name] for name in names]
    assert known == [summary["StreamDescriptionSummary"][name] for name in names]
    assert known[3]["StreamMode"] in {"PROVISIONED", "ON_DEMAND"}


async def test_shards_are_listed_in_pages(service: Service) -> None:
    whole = await ask(service.client.list_shards, StreamARN=service.arn)
    page = await ask(service.client.list_shards, StreamARN=service.arn, MaxResults=1)
    listed = page["Shards"]
    while "NextToken" in page:
        page = await ask(service.client.list_shards, NextToken=page["NextToken"], MaxResults=1)
        assert len(page["Shards"]) == 1
        listed += page["Shards"]
    assert listed == whole["Shards"]


async def test_a_poll_for_more_records_than_a_page_holds_is_refused(service: Service) -> None:
    token = await iterator(service, ShardIteratorType="LATEST")
    with pytest.raises(ClientError) as error:
        await ask(service.client.get_records, ShardIterator=token, Limit=10_001)
    # The reference says the one; the model of the API, which the service checks first, the other.
    assert code_of(error.value) in {"InvalidArgumentException", "ValidationException"}


async def test_a_record_says_how_its_stream_was_encrypted(service: Service) -> None:
    (number,) = await service.put(service.key(), b"a")
    token = await iterator(
        service, ShardIteratorType="AT_SEQUENCE_NUMBER", StartingSequenceNumber=number
    )
    records: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE):
        while not records:  # a poll may come back with nothing
            answer = await ask(service.client.get_records, ShardIterator=token)
            records, token = answer["Records"], answer["NextShardIterator"]
    summary = await ask(service.client.describe_stream_summary, StreamARN=service.arn)
    encryption = summary["StreamDescriptionSummary"]["EncryptionType"]
    assert records[0]["SequenceNumber"] == number
    assert records[0].get("EncryptionType", "NONE") == encryption


async def iterator(service: Service, **position: str) -> str:
    answer = await ask(
        service.client.get_shard_iterator,
        StreamARN=service.arn,
        ShardId=service.shard,
        **position,
    )
    return str(answer["ShardIterator"])
