"""Plans of every service that is simulated, by the name of the service."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import OptionError
from tests.provers.simulation.kafka.plan import KafkaPlan, draw_kafka_plan
from tests.provers.simulation.kinesis.plan import KinesisPlan, draw_kinesis_plan

__all__ = ("AnyPlan", "SourceName", "draw_plan_of", "read_plan")

AnyPlan: TypeAlias = KinesisPlan | KafkaPlan


@final
class SourceName(StrEnum):
    """What a simulated job reads from."""

    KINESIS = "kinesis"
    KAFKA = "kafka"


def draw_plan_of(source: SourceName, seed: int) -> AnyPlan:
    """Draw a plan.

    Args:
        source: What is read.
        seed: Any number.
    """
    match source:
        case SourceName.KINESIS:
            return draw_kinesis_plan(seed)
        case SourceName.KAFKA:
            return draw_kafka_plan(seed)


def read_plan(text: str | bytes) -> AnyPlan:
    """Read a plan back that was kept as JSON, of whatever service it is.

    Raises:
        OptionError: If it is none; see `tests.provers.simulation.kinesis.plan.decode_plan`.
    """
    try:
        document = msgspec.json.decode(text)
    except MALFORMED_JSON as error:
        raise OptionError(f"this is not a plan of a simulation: {error}") from error
    of_kafka = isinstance(document, dict) and "cluster_faults" in document
    return KafkaPlan.from_json(text) if of_kafka else KinesisPlan.from_json(text)
