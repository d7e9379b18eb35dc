"""What a writer of a shuffle can be told, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from fanout.core.option_checks import number, one_of, whole
from fanout.errors import OptionError
from fanout.kafka.cluster import parse_servers
from fanout.kafka.security import Security
from fanout.kafka.shuffle.frames import MAX_GENERATION, MAX_PRODUCERS
from fanout.kafka.writing.producer_options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from fanout.kafka.cluster import Server

__all__ = ("Chosen", "ShuffleWriterOptions", "check_lateness", "check_producers")

Chosen: TypeAlias = "str | Callable[[pa.RecordBatch], pa.Array]"
"""A column by its name, or a function of the rows that returns one."""

# Less would keep brokers busy with what says nothing.
_LEAST_IDLE = 0.1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleWriterOptions:
    """Everything that a writer can be told; see `open_shuffle_writer`.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    bootstrap_servers: str | Sequence[str]
    topic: str
    security: Security = field(default_factory=Security)
    key: Chosen = "key"
    value: Chosen = "value"
    timestamp: Chosen | None = None
    out_of_orderness: float | None = None
    delivery_guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once"
    partition_count: int | None = None
    producer: int = 0
    producers: int = 1
    generation: int | None = None
    idle_after: float | None = 10.0
    transaction_timeout: float | None = None
    transactional_id_prefix: str = "fanout"
    client_id_prefix: str = "fanout"
    producer_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.servers, self.producing  # checks them
        if not isinstance(self.security, Security):
            raise OptionError("security must be a fanout.kafka.Security")
        for name in ("topic", "transactional_id_prefix", "client_id_prefix"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise OptionError(f"{name}={value!r} must be a string, and not empty")
        for name in ("key", "value", "timestamp"):
            value = getattr(self, name)
            if not (
                isinstance(value, str) or callable(value) or (name, value) == ("timestamp", None)
            ):
                raise OptionError(f"{name}={value!r} must name a column, or be a function of rows")
        one_of("delivery_guarantee", self.delivery_guarantee, "exactly_once", "at_least_once")
        check_lateness(self.out_of_orderness, has_times=self.timestamp is not None)
        check_producers(self.producer, self.producers, self.generation, self.partition_count)
        for name, least in (("idle_after", _LEAST_IDLE), ("transaction_timeout", 1)):
            value = getattr(self, name)
            if value is not None and not least <= number(name, value) < math.inf:
                raise OptionError(f"{name}={value} must be at least {least:g} seconds, or None")

    @property
    def servers(self) -> Sequence[Server]:
        """Brokers to begin with."""
        return parse_servers(self.bootstrap_servers)

    @property
    def producing(self) -> ProducerOptions:
        """What the options of Kafka's producer mean here."""
        return ProducerOptions.parse(self.producer_options)

    @property
    def transactional_id(self) -> str:
        """The transactional id, of which each producer of a topic has its own."""
        return f"{self.transactional_id_prefix}-{self.topic}-producer-{self.producer}"


def check_lateness(out_of_orderness: object, *, has_times: bool) -> None:
    """Check how many seconds records may be late; None where nothing follows from their times.

    Raises:
        OptionError: If it is no such number, or records have no times.
    """
    if out_of_orderness is None:
        return
    if not 0 <= number("out_of_orderness", out_of_orderness) < math.inf:
        raise OptionError(
            f"out_of_orderness={out_of_orderness} must be 0 seconds or more, and finite, or None"
        )
    if not has_times:
        raise OptionError("out_of_orderness speaks of the times of records: pass timestamp=")


def check_producers(
    producer: object, producers: object, generation: object, partition_count: object
) -> None:
    """Check who a writer is among those of its generation.

    Raises:
        OptionError: If there is no such producer, or several do not know their generation.
    """
    if not 1 <= (count := whole("producers", producers)) <= MAX_PRODUCERS:
        raise OptionError(f"producers={producers} must be from 1 to {MAX_PRODUCERS}")
    if not 0 <= whole("producer", producer) < count:
        raise OptionError(f"producer={producer} must be from 0 to {count - 1}: there are {count}")
    if generation is None and count > 1:
        raise OptionError(
            f"{count} producers share a generation: pass the same generation= to each, and a "
            f"higher one whenever their number changes"
        )
    if generation is not None and not (
        0 <= whole("generation", generation, or_none=True) <= MAX_GENERATION
    ):
        raise OptionError(f"generation={generation} must be from 0 to {MAX_GENERATION}, or None")
    if partition_count is not None and whole("partition_count", partition_count, or_none=True) < 1:
        raise OptionError(f"partition_count={partition_count} must be at least 1, or None")
