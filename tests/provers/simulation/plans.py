"""Plans of all services that are simulated: draw one by its seed, read one that was stored."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import OptionError
from tests.provers.simulation.kafka.faults import KafkaFault
from tests.provers.simulation.kafka.plan import KafkaPlan
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.kinesis.faults import KinesisFault
from tests.provers.simulation.kinesis.plan import KinesisPlan
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.landers.plan import LanderFault, LandersPlan, draw_landers_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("AnyPlan", "SourceName", "draw_plan_of", "read_plan")

AnyPlan: TypeAlias = KinesisPlan | KafkaPlan | LandersPlan


@final
class SourceName(StrEnum):
    """The source of a simulated job; the tag of its plan."""

    KINESIS = "kinesis"
    KAFKA = "kafka"
    LANDERS = "landers"


class _Tagged(msgspec.Struct, frozen=True):
    source: SourceName = SourceName.KINESIS  # plans of the first version have no tag


# The fields of a plan that hold faults, and the type of these.
_FAULTS: Final[Mapping[str, type[Any]]] = {"faults": KinesisFault, "cluster_faults": KafkaFault}


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
        case SourceName.LANDERS:
            return draw_landers_plan(seed)


def read_plan(text: str | bytes) -> AnyPlan:
    """Read a plan that was stored as JSON; its faults may be in any order.

    Args:
        text: The JSON; `source` names its service, and is Kinesis where it is missing.

    Raises:
        OptionError: If it is no plan: not JSON, a field is missing, or this version does not know
            a field, without which the run would be another one.
    """
    plan: AnyPlan
    try:
        match msgspec.json.decode(text, type=_Tagged).source:
            case SourceName.KINESIS:
                plan = msgspec.json.decode(text, type=KinesisPlan)
            case SourceName.KAFKA:
                plan = msgspec.json.decode(text, type=KafkaPlan)
            case SourceName.LANDERS:
                plan = msgspec.json.decode(text, type=LandersPlan)
        _check_names(msgspec.json.decode(text), type(plan))
    except MALFORMED_JSON as error:
        raise OptionError(f"this is not a plan of a simulation: {error}") from error
    by_time: dict[str, Any] = {
        name: tuple(sorted(getattr(plan, name), key=attrgetter("at")))
        for name in _FAULTS
        if hasattr(plan, name)
    }
    return replace(plan, **by_time)


def _check_names(document: dict[str, Any], kind: type[AnyPlan]) -> None:
    """Refuse unknown fields, which msgspec passes over in a dataclass."""
    unknown = document.keys() - {each.name for each in fields(kind)}
    for name, fault_type in _FAULTS.items():
        kind_of_fault = LanderFault if kind is LandersPlan else fault_type
        for fault in document.get(name, ()):
            unknown |= fault.keys() - {each.name for each in fields(kind_of_fault)}
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        raise OptionError(f"this plan is of a newer version of fanout, or misspelt: {names}")
