"""What the service's API has today and the installed botocore may not know yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fanout.kinesis.queue.model import add_queues

if TYPE_CHECKING:
    from botocore.model import ServiceModel


def _structure(required: str = "", /, **members: str) -> dict[str, Any]:
    shapes = {name: {"shape": shape} for name, shape in members.items()}
    return {"type": "structure", "required": required.split(), "members": shapes}


_COMMITMENT: Final = "MinimumThroughputBillingCommitment"
_SHAPES: Final[dict[str, dict[str, Any]]] = {
    "MaxRecordSizeInKiB": {"type": "integer", "min": 1024, "max": 10240},
    "NaturalIntegerObject": {"type": "integer", "min": 0},
    "RecordDistributionStrategy": {"type": "string", "enum": ["AUTO", "USER_PARTITION_KEY"]},
    "WarmThroughputObject": _structure(
        TargetMiBps="NaturalIntegerObject", CurrentMiBps="NaturalIntegerObject"
    ),
    f"{_COMMITMENT}InputStatus": {"type": "string", "enum": ["ENABLED", "DISABLED"]},
    f"{_COMMITMENT}OutputStatus": {"type": "string"},
    f"{_COMMITMENT}Input": _structure("Status", Status=f"{_COMMITMENT}InputStatus"),
    f"{_COMMITMENT}Output": _structure(
        "Status",
        Status=f"{_COMMITMENT}OutputStatus",
        StartedAt="Timestamp",
        EndedAt="Timestamp",
        EarliestAllowedEndAt="Timestamp",
    ),
    "DescribeAccountSettingsInput": _structure(),
    "DescribeAccountSettingsOutput": _structure(**{_COMMITMENT: f"{_COMMITMENT}Output"}),
    "UpdateAccountSettingsInput": _structure(_COMMITMENT, **{_COMMITMENT: f"{_COMMITMENT}Input"}),
    "UpdateAccountSettingsOutput": _structure(**{_COMMITMENT: f"{_COMMITMENT}Output"}),
    "UpdateMaxRecordSizeInput": _structure(
        "MaxRecordSizeInKiB", StreamARN="StreamARN", MaxRecordSizeInKiB="MaxRecordSizeInKiB"
    ),
    "UpdateStreamRecordDistributionStrategyInput": _structure(
        "StreamARN RecordDistributionStrategy",
        StreamARN="StreamARN",
        RecordDistributionStrategy="RecordDistributionStrategy",
    ),
    "UpdateStreamWarmThroughputInput": _structure(
        "WarmThroughputMiBps",
        StreamARN="StreamARN",
        StreamName="StreamName",
        WarmThroughputMiBps="NaturalIntegerObject",
    ),
    "UpdateStreamWarmThroughputOutput": _structure(
        StreamARN="StreamARN", StreamName="StreamName", WarmThroughput="WarmThroughputObject"
    ),
}
_MEMBERS: Final[dict[str, dict[str, str]]] = {
    **{
        f"{operation}Input": {"DryRun": "BooleanObject"}
        for operation in (
            "GetRecords",
            "GetShardIterator",
            "PutRecord",
            "PutRecords",
            "SubscribeToShard",
        )
    },
    "CreateStreamInput": {
        "MaxRecordSizeInKiB": "MaxRecordSizeInKiB",
        "RecordDistributionStrategy": "RecordDistributionStrategy",
        "Tags": "TagMap",
        "WarmThroughputMiBps": "NaturalIntegerObject",
    },
    "StreamDescriptionSummary": {
        "MaxRecordSizeInKiB": "MaxRecordSizeInKiB",
        "RecordDistributionStrategy": "RecordDistributionStrategy",
        "WarmThroughput": "WarmThroughputObject",
    },
    "UpdateStreamModeInput": {"WarmThroughputMiBps": "NaturalIntegerObject"},
}
# Where the service distributes the records, they need no key.
_KEYLESS: Final = ("PutRecordInput", "PutRecordsRequestEntry", "Record")


def extend_model(model: ServiceModel) -> None:
    """Add to a client's or a server's model what it lacks; what it has stays."""
    add_queues(model)
    document: Any = model._service_description  # noqa: SLF001 - no public name exists
    shapes = document["shapes"]
    for name, shape in _SHAPES.items():
        shapes.setdefault(name, shape)
    for name, members in _MEMBERS.items():
        for member, shape_name in members.items():
            shapes[name]["members"].setdefault(member, {"shape": shape_name})
    # Queues have tags as well.
    shapes["ResourceARN"]["pattern"] = r"arn:aws.*:kinesis:.*:\d{12}:.*(stream|channel|queue)/\S+"
    for name in _KEYLESS:
        shapes[name]["required"] = [
            each for each in shapes[name].get("required", ()) if each != "PartitionKey"
        ]
    for name in (each.removesuffix("Input") for each in _SHAPES if each.endswith("Input")):
        if name != _COMMITMENT:
            operation: dict[str, Any] = {
                "name": name,
                "http": {"method": "POST", "requestUri": "/"},
                "input": {"shape": f"{name}Input"},
            }
            if f"{name}Output" in _SHAPES:
                operation["output"] = {"shape": f"{name}Output"}
            document["operations"].setdefault(name, operation)
