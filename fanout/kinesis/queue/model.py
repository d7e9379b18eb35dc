"""The operations on queues, for a botocore that does not know them yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from botocore.model import ServiceModel


def _structure(required: str = "", /, **members: str) -> dict[str, Any]:
    shapes = {name: {"shape": shape} for name, shape in members.items()}
    return {"type": "structure", "required": required.split(), "members": shapes}


def _list(shape: str, most: int | None = None) -> dict[str, Any]:
    bounds = {} if most is None else {"min": 1, "max": most}
    return {"type": "list", "member": {"shape": shape}, **bounds}


# The names are those of AWS's model, but for the entries, which have a name for each operation.
_ENTRIES: Final = ("QueueEntry", "QueueVisibilityEntry")
# What is done to received records, with the kind of its entries.
_SETTLING: Final = {
    "AcknowledgeQueueRecords": _ENTRIES[0],
    "AcknowledgeDeadLetterQueueRecords": _ENTRIES[0],
    "RestoreDeadLetterQueueRecords": _ENTRIES[0],
    "UpdateQueueRecordsVisibility": _ENTRIES[1],
    "UpdateDeadLetterQueueRecordsVisibility": _ENTRIES[1],
}
_RECEIVING: Final = ("ReceiveQueueRecords", "ReceiveDeadLetterQueueRecords")
_DESCRIBING: Final = ("CreateQueue", "DescribeQueue", "UpdateQueue")
_SHAPES: Final[dict[str, dict[str, Any]]] = {
    "QueueARN": {
        "type": "string",
        "min": 1,
        "max": 2048,
        "pattern": r"arn:aws.*:kinesis:.*:\d{12}:queue/\S+",
    },
    "QueueName": {"type": "string", "min": 1, "max": 128, "pattern": "[a-zA-Z0-9_.-]+"},
    "QueueStatus": {"type": "string"},
    "ReceiptHandle": {"type": "string", "min": 1, "max": 1024},
    "RecordId": {"type": "string"},
    "ReceiveCount": {"type": "integer"},
    "VisibilityTimeoutSeconds": {"type": "integer", "min": 0, "max": 43_200},
    "MaxReceiveCount": {"type": "integer", "min": 1, "max": 1000},
    "QueueLimit": {"type": "integer", "min": 1, "max": 10},
    "QueueWaitTimeSeconds": {"type": "integer", "min": 1, "max": 20},
    "QueueMaxResults": {"type": "integer", "min": 1, "max": 10_000},
    "TargetType": {"type": "string", "enum": ["BUILT_IN", "NONE"]},
    "QueueStartingPositionType": {
        "type": "string",
        "enum": ["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"],
    },
    "QueueStartingPosition": _structure(
        "Type", Type="QueueStartingPositionType", Timestamp="Timestamp"
    ),
    "QueueStreamConfiguration": _structure(
        "StreamARN", StreamARN="StreamARN", StartingPosition="QueueStartingPosition"
    ),
    "QueueStreamConfigurationList": _list("QueueStreamConfiguration", 10_000),
    "DeadLetterConfiguration": _structure(
        "TargetType", TargetType="TargetType", MaxReceiveCount="MaxReceiveCount"
    ),
    "QueueAttributes": _structure(
        VisibilityTimeoutSeconds="VisibilityTimeoutSeconds",
        DeadLetterConfiguration="DeadLetterConfiguration",
    ),
    "QueueDescription": _structure(
        QueueName="QueueName",
        QueueARN="QueueARN",
        QueueStatus="QueueStatus",
        QueueCreationTimestamp="Timestamp",
        StreamConfigurationList="QueueStreamConfigurationList",
        QueueAttributes="QueueAttributes",
    ),
    "QueueStream": _structure(
        "StreamARN", StreamARN="StreamARN", StreamCreationTimestamp="Timestamp"
    ),
    "QueueStreamList": _list("QueueStream", 10_000),
    "QueueSummary": _structure(
        QueueName="QueueName",
        QueueARN="QueueARN",
        QueueStatus="QueueStatus",
        QueueCreationTimestamp="Timestamp",
        Streams="QueueStreamList",
    ),
    "QueueSummaryList": _list("QueueSummary"),
    "QueueRecord": _structure(
        ReceiptHandle="ReceiptHandle",
        RecordId="RecordId",
        PartitionKey="PartitionKey",
        Data="Data",
        ApproximateArrivalTimestamp="Timestamp",
        FirstReceiveTimestamp="Timestamp",
        ReceiveCount="ReceiveCount",
    ),
    "QueueRecordList": _list("QueueRecord"),
    "QueueEntry": _structure("ReceiptHandle", ReceiptHandle="ReceiptHandle"),
    "QueueVisibilityEntry": _structure(
        "ReceiptHandle VisibilityTimeoutSeconds",
        ReceiptHandle="ReceiptHandle",
        VisibilityTimeoutSeconds="VisibilityTimeoutSeconds",
    ),
    "QueueFailure": _structure(
        ReceiptHandle="ReceiptHandle", ErrorCode="ErrorCode", ErrorMessage="ErrorMessage"
    ),
    "QueueFailureList": _list("QueueFailure"),
    **{f"{entry}List": _list(entry, 10) for entry in _ENTRIES},
    "CreateQueueInput": _structure(
        "QueueName StreamConfigurationList",
        QueueName="QueueName",
        StreamConfigurationList="QueueStreamConfigurationList",
        QueueAttributes="QueueAttributes",
        Tags="TagMap",
    ),
    "UpdateQueueInput": _structure(
        "QueueARN QueueAttributes", QueueARN="QueueARN", QueueAttributes="QueueAttributes"
    ),
    "DescribeQueueInput": _structure("QueueARN", QueueARN="QueueARN"),
    "DeleteQueueInput": _structure("QueueARN", QueueARN="QueueARN"),
    "ListQueuesInput": _structure(
        MaxResults="QueueMaxResults", NextToken="NextToken", StreamFilter="QueueStreamFilterList"
    ),
    "QueueStreamFilter": _structure(
        "StreamARN", StreamARN="StreamARN", StreamCreationTimestamp="Timestamp"
    ),
    "QueueStreamFilterList": _list("QueueStreamFilter", 10_000),
    "ListQueuesOutput": _structure(QueueSummaries="QueueSummaryList", NextToken="NextToken"),
    **{f"{name}Output": _structure(QueueDescription="QueueDescription") for name in _DESCRIBING},
    **{
        f"{name}Input": _structure(
            "QueueARN",
            QueueARN="QueueARN",
            Limit="QueueLimit",
            WaitTimeSeconds="QueueWaitTimeSeconds",
            VisibilityTimeoutSeconds="VisibilityTimeoutSeconds",
        )
        for name in _RECEIVING
    },
    **{f"{name}Output": _structure(QueueRecords="QueueRecordList") for name in _RECEIVING},
    **{
        f"{name}Input": _structure("QueueARN Entries", QueueARN="QueueARN", Entries=f"{entry}List")
        for name, entry in _SETTLING.items()
    },
    **{
        f"{name}Output": _structure(Successful="QueueEntryList", Failed="QueueFailureList")
        for name in _SETTLING
    },
}


def add_queues(model: ServiceModel) -> None:
    """Add the operations on queues to a client's or a server's model; what it has stays."""
    document: Any = model._service_description  # noqa: SLF001 - no public name exists
    shapes, operations = document["shapes"], document["operations"]
    if "ReceiveQueueRecords" in operations:
        return
    for name, shape in _SHAPES.items():
        shapes.setdefault(name, shape)
    for input_ in _SHAPES:
        name = input_.removesuffix("Input")
        if name != input_:
            operations[name] = {
                "name": name,
                "http": {"method": "POST", "requestUri": "/"},
                "input": {"shape": input_},
            }
            if f"{name}Output" in _SHAPES:
                operations[name]["output"] = {"shape": f"{name}Output"}
