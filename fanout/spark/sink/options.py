"""What a sink can be told, checked once."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final, get_args

from fanout.core.option_checks import number, one_of
from fanout.errors import OptionError
from fanout.kafka.cluster import parse_servers
from fanout.kafka.security import Security
from fanout.kafka.writing.producer_options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

__all__ = ("DeliveryGuarantee", "KafkaSinkOptions", "Partitioner")

DeliveryGuarantee: TypeAlias = Literal["exactly_once", "at_least_once", "none"]
Partitioner: TypeAlias = "Callable[[pa.Array, int], pa.Array]"
"""From the keys of many rows (binary, null where there is none) and the number of partitions of
their topic to the partition of each."""

# A sink's name is part of a file's name and of a transactional id.
_SINK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SECRETS = ("password", "key_password", "token", "ssl_context")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkOptions:
    """Everything that a sink can be told; see `kafka_sink`.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    bootstrap_servers: str | Sequence[str]
    topic: str | None = None
    sink_name: str = "kafka"
    security: Security | Callable[[], Security] = field(default_factory=Security)
    delivery_guarantee: DeliveryGuarantee = "exactly_once"
    partitioner: Partitioner | None = None
    transaction_timeout: float | None = None
    transactional_id_prefix: str = "fanout"
    client_id_prefix: str = "fanout"
    producer_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse_servers(self.bootstrap_servers)
        _ = self.make_security, self.producing  # checks them
        one_of("delivery_guarantee", self.delivery_guarantee, *get_args(DeliveryGuarantee))
        for name in ("transactional_id_prefix", "client_id_prefix", "topic"):
            value = getattr(self, name)
            if value is None and name == "topic":
                continue
            if not isinstance(value, str) or not value:
                raise OptionError(f"{name}={value!r} must be a string, and not empty")
        if not isinstance(self.sink_name, str) or not _SINK_NAME.fullmatch(self.sink_name):
            raise OptionError(
                f"sink_name={self.sink_name!r} must be up to 100 letters, digits, dots, dashes and "
                f"underscores, and begin with a letter or a digit"
            )
        if self.partitioner is not None and not callable(self.partitioner):
            raise OptionError(
                f"partitioner={self.partitioner!r} must be a function of keys and a number"
            )
        timeout = self.transaction_timeout
        if timeout is not None and not 1 <= number("transaction_timeout", timeout) < math.inf:
            raise OptionError(f"transaction_timeout={timeout} must be at least 1 second, or None")

    @property
    def producing(self) -> ProducerOptions:
        """What the options of Kafka's producer mean here."""
        return ProducerOptions.parse(self.producer_options)

    @property
    def make_security(self) -> Callable[[], Security]:
        """Makes the security where it is used: what is sent to Spark's workers.

        Raises:
            OptionError: It would have to be sent with a secret in it.
        """
        security = self.security
        if not isinstance(security, Security):
            if not callable(security):
                raise OptionError("security must be a fanout.kafka.Security, or return one")
            return security
        secrets = [name for name in _SECRETS if getattr(security, name) is not None]
        if secrets:
            raise OptionError(
                f"security holds {' and '.join(secrets)}, which does not travel to Spark's "
                f"workers: pass a function that returns it, like security=lambda: Security("
                f"..., password=os.environ['KAFKA_PASSWORD']), which is called where it is used"
            )
        named = {one.name: getattr(security, one.name) for one in fields(security)}
        return partial(Security, **named)

    def transactional_id(self, query_id: str) -> str:
        """Return the transactional id of the sink in a query."""
        return f"{self.transactional_id_prefix}-{query_id}-{self.sink_name}"

    def marker_group(self, query_id: str) -> str:
        """Return the consumer group in which the sink of a query marks what was committed."""
        return f"{self.transactional_id(query_id)}-marker"
