"""Build the least IAM policy that reading a stream needs, or writing to it."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from fanout.core.option_checks import check_text
from fanout.core.sentence import Option, all_of
from fanout.errors import OptionError

_STREAM: Final = re.compile(
    r"arn:aws[a-z0-9-]*:kinesis:(?P<region>[a-z0-9-]+):[0-9]{12}:stream/[a-zA-Z0-9_.-]{1,128}"
)
_CONSUMER: Final = re.compile(r"/consumer/(?P<name>[a-zA-Z0-9_.-]{1,128})(?P<created>:[0-9]+)?")
_QUEUE: Final = re.compile(r"arn:aws[a-z0-9-]*:kinesis:[a-z0-9-]+:[0-9]{12}:queue/\S+")
_TABLE: Final = re.compile(
    r"arn:aws[a-z0-9-]*:dynamodb:[a-z0-9-]+:[0-9]{12}:table/[a-zA-Z0-9_.-]{3,255}"
)
_KEY: Final = re.compile(r"arn:aws[a-z0-9-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[a-zA-Z0-9-]+")


def iam_policy(
    stream_arn: str,
    consumer_arn: str | None = None,
    *,
    mode: Literal["efo", "polling", "write"] = "efo",
    deploy: bool = False,
    kms_key_arn: str | None = None,
    queue_arn: str | None = None,
    table_arn: str | None = None,
) -> dict[str, Any]:
    """Return the policy document that lets a role read a stream or write to it, and nothing else.

    The resource of each action is from the Service Authorization Reference of Kinesis Data Streams
    and from the developer guide's page on permissions of consumers.

    Args:
        stream_arn: The stream's ARN.
        consumer_arn: The consumer's ARN; without its creation time it matches every consumer
            that is ever registered under that name. None for all consumers of the stream.
        mode: `"efo"` or `"polling"` to read, or `"write"`. A role that polls or writes needs no
            permission on a consumer.
        deploy: Allow also to register, tag, list and deregister consumers. A job that names its
            consumer needs it to register it; one that is given a consumer's ARN does not.
        kms_key_arn: The stream's key, if it is encrypted with a customer managed key.
        queue_arn: The ARN of a queue of the stream, to read its records from the queue alone; no
            consumer is needed then. With `deploy` the role may also restore its dead letters.
        table_arn: The ARN of the lease table by which processes share the stream. With `deploy` the
            role may also create it.

    Raises:
        OptionError: If an ARN is malformed, the consumer belongs to another stream, a queue and a
            consumer are named, or `consumer_arn`, `deploy` or `queue_arn` is set although the role
            polls or writes.
    """
    check_text("stream_arn", stream_arn, or_none=False)
    _check_texts(
        consumer_arn=consumer_arn, kms_key_arn=kms_key_arn, queue_arn=queue_arn, table_arn=table_arn
    )
    stream = _STREAM.fullmatch(stream_arn)
    if stream is None:
        raise OptionError(
            Option("stream_arn", stream_arn),
            " is not the ARN of a stream, such as "
            "arn:aws:kinesis:eu-west-1:111122223333:stream/orders",
        )
    match mode:
        case "efo" if queue_arn is not None:
            if consumer_arn is not None:
                raise OptionError(
                    all_of(["consumer_arn", "queue_arn"]), " exclude each other: leave one out"
                )
            statements = _through_a_queue(queue_arn, deploy=deploy)
        case "efo":
            statements = _through_a_consumer(stream_arn, consumer_arn, deploy=deploy)
        case "polling" | "write" if (
            consumer_arn is not None or queue_arn is not None or (deploy and table_arn is None)
        ):
            raise OptionError(
                all_of(["consumer_arn", "queue_arn", "deploy"]),
                f" are about consumers, and a role that {mode.removesuffix('ing')}s needs none; "
                f"leave them out",
            )
        case "polling":
            statements = [_allow("ReadRecords", ["GetRecords", "GetShardIterator"], [stream_arn])]
        case "write":
            statements = [_allow("WriteRecords", ["PutRecords"], [stream_arn])]
        case _:
            raise OptionError(
                Option("mode", mode), " is not understood; use 'efo', 'polling' or 'write'"
            )
    if table_arn is not None:
        statements.append(_through_a_table(table_arn, mode, deploy=deploy))
    statements.append(
        _allow("DescribeStream", ["DescribeStreamSummary", "ListShards"], [stream_arn])
    )
    if kms_key_arn is not None:
        statements.append(
            _allow_key(kms_key_arn, stream["region"], stream_arn, writing=mode == "write")
        )
    return {"Version": "2012-10-17", "Statement": statements}


def _check_texts(**arns: object) -> None:
    for name, arn in arns.items():
        check_text(name, arn)


def _through_a_consumer(
    stream_arn: str, consumer_arn: str | None, *, deploy: bool
) -> list[dict[str, Any]]:
    consumers = _consumers(stream_arn, consumer_arn, deploy=deploy)
    statements = [
        _allow("ReadRecords", ["SubscribeToShard"], [consumers]),
        _allow("DescribeConsumer", ["DescribeStreamConsumer"], [stream_arn, consumers]),
    ]
    if deploy:
        statements += [
            _allow(
                "RegisterConsumer",
                ["ListStreamConsumers", "RegisterStreamConsumer"],
                [stream_arn],
            ),
            _allow("TagConsumer", ["TagResource"], [consumers]),
            _allow("DeregisterConsumer", ["DeregisterStreamConsumer"], [stream_arn, consumers]),
        ]
    return statements


def _through_a_queue(queue_arn: str, *, deploy: bool) -> list[dict[str, Any]]:
    if not _QUEUE.fullmatch(queue_arn):
        raise OptionError(Option("queue_arn", queue_arn), " is not the ARN of a queue")
    reading = ["ReceiveQueueRecords", "AcknowledgeQueueRecords", "UpdateQueueRecordsVisibility"]
    statements = [
        _allow("ReadQueue", [*reading, "DescribeQueue"], [queue_arn]),
        # The listing is that of the account and region, and has no resource.
        _allow("ListQueues", ["ListQueues"], ["*"]),
    ]
    if deploy:
        restoring = [
            "ReceiveDeadLetterQueueRecords",
            "RestoreDeadLetterQueueRecords",
            "UpdateDeadLetterQueueRecordsVisibility",
        ]
        statements.append(_allow("RestoreDeadLetters", restoring, [queue_arn]))
    return statements


def _through_a_table(table_arn: str, mode: str, *, deploy: bool) -> dict[str, Any]:
    if not _TABLE.fullmatch(table_arn):
        raise OptionError(Option("table_arn", table_arn), " is not the ARN of a table of DynamoDB")
    if mode == "write":
        raise OptionError(
            Option("table_arn", table_arn), " is about reading, and this role writes; leave it out"
        )
    actions = ["DescribeTable", "Scan", "GetItem", "PutItem", "UpdateItem", "DeleteItem"]
    actions += ["CreateTable"] if deploy else []
    return {
        "Sid": "ShareShards",
        "Effect": "Allow",
        "Action": [f"dynamodb:{action}" for action in actions],
        "Resource": [table_arn],
    }


def _consumers(stream_arn: str, consumer_arn: str | None, *, deploy: bool) -> str:
    if consumer_arn is None:
        return f"{stream_arn}/consumer/*"
    consumer = _CONSUMER.fullmatch(consumer_arn.removeprefix(stream_arn))
    if consumer is None:
        raise OptionError(
            Option("consumer_arn", consumer_arn),
            f" is not the ARN of a consumer of {stream_arn}, which is {stream_arn}/consumer/ and "
            "its name",
        )
    # A consumer that is registered again has another creation time in its ARN.
    created = consumer["created"] if consumer["created"] and not deploy else ":*"
    return f"{stream_arn}/consumer/{consumer['name']}{created}"


def _allow(sid: str, actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"kinesis:{action}" for action in actions],
        "Resource": resources,
    }


def _allow_key(key_arn: str, region: str, stream_arn: str, *, writing: bool) -> dict[str, Any]:
    """Allow only Kinesis to decrypt the records on behalf of the role, or to encrypt them."""
    if not _KEY.fullmatch(key_arn):
        raise OptionError(
            Option("kms_key_arn", key_arn), " is not the ARN of a key; an alias cannot be granted"
        )
    domain = "amazonaws.com.cn" if stream_arn.startswith("arn:aws-cn:") else "amazonaws.com"
    return {
        "Sid": "EncryptRecords" if writing else "DecryptRecords",
        "Effect": "Allow",
        "Action": ["kms:GenerateDataKey" if writing else "kms:Decrypt"],
        "Resource": [key_arn],
        "Condition": {"StringEquals": {"kms:ViaService": f"kinesis.{region}.{domain}"}},
    }
