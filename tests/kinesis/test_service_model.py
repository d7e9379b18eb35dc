"""A guard: what botocore knows of Kinesis against the summary of it that fanout was built for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import create_loader

from fanout.kinesis.policy import _CODES

# Made of botocore 1.44.8 by `python -m tests.kinesis.test_service_model`.
_STORED = Path(__file__).with_name("service_model.json")
# What fanout calls.
_CALLED = [
    "DescribeStreamSummary",
    "ListShards",
    "ListStreamConsumers",
    "RegisterStreamConsumer",
    "PutRecords",
    "DescribeStreamConsumer",
    "DeregisterStreamConsumer",
    "SubscribeToShard",
    "GetShardIterator",
    "GetRecords",
]


def summary() -> dict[str, list[str]]:
    """Return each operation with its errors, and each shape with its members and limits."""
    model = create_loader().load_service_model("kinesis", "service-2")
    found = {
        name: sorted(error["shape"] for error in operation.get("errors", ()))
        for name, operation in model["operations"].items()
    }
    for name, shape in model["shapes"].items():
        required = shape.get("required", ())
        members = [f"{each}!" if each in required else each for each in shape.get("members", ())]
        limits = [f"{each}={shape[each]}" for each in ("min", "max", "enum") if each in shape]
        found[f"shape {name}"] = sorted(members) + limits
    return found


def stored() -> dict[str, list[str]]:
    document: dict[str, list[str]] = json.loads(_STORED.read_text())
    return document


def test_the_installed_model_has_nothing_that_is_new() -> None:
    known = stored()
    new: dict[str, Any] = {}
    for name, parts in summary().items():
        # An older model may still require what is optional today.
        today = {part.removesuffix("!") for part in known.get(name, ())}
        unknown = [part for part in parts if part.removesuffix("!") not in today]
        unknown = [part for part in unknown if "=" not in part]
        if unknown or name not in known:
            new[name] = unknown
    assert not new, f"decide about these, and store a new summary: {new}"


@pytest.mark.parametrize("operation", _CALLED)
def test_each_error_of_a_call_has_a_row(operation: str) -> None:
    assert set(stored()[operation]) - _CODES.keys() == set()


if __name__ == "__main__":
    _STORED.write_text(json.dumps(summary(), indent=0, sort_keys=True) + "\n")
