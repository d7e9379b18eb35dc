"""The options of everything that writes to topics: the Spark sinks and the shuffle writer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from fanout.core.option_checks import check_text, number, one_of
from fanout.errors import OptionError
from fanout.kafka.cluster import check_cluster
from fanout.kafka.writing.producer_options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.cluster import Cluster

DeliveryGuarantee: TypeAlias = Literal["exactly_once", "at_least_once", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of everything that writes to Kafka. All times are in seconds.

    Args:
        cluster: Where the brokers are, and how to connect to them.
        topic: The topic that is written to; it has to exist. None where each row names its own.
        delivery_guarantee: `"exactly_once"`, in transactions; `"at_least_once"`, which waits for
            all in-sync replicas, so that after a failure records may be there twice; or `"none"`,
            which waits for no answer (`acks=0`).
        transaction_timeout: Seconds after which brokers abort a transaction that is open, at least
            1; None is the most that they allow (`transaction.max.timeout.ms`).
        transactional_id_prefix: The beginning of the transactional id, for the brokers' ACLs.
        producer_options: Options of Kafka's producer by Kafka's names, such as
            `{"compression.type": "zstd"}`.
    """

    cluster: Cluster
    topic: str | None = None
    delivery_guarantee: DeliveryGuarantee = "exactly_once"
    transaction_timeout: float | None = None
    transactional_id_prefix: str = "fanout"
    producer_options: Mapping[str, str | int] = field(default_factory=dict, hash=False)

    @property
    def producing(self) -> ProducerOptions:
        """The producer options, parsed."""
        return ProducerOptions.parse(self.producer_options)

    def check_writing(self, *guarantees: DeliveryGuarantee) -> None:
        """Check the options of this class; one of these delivery guarantees must be chosen."""
        check_cluster(self.cluster)
        _ = self.producing  # checks it
        one_of("delivery_guarantee", self.delivery_guarantee, *guarantees)
        check_text("transactional_id_prefix", self.transactional_id_prefix, or_none=False)
        check_text("topic", self.topic)
        timeout = self.transaction_timeout
        if timeout is not None and not 1 <= number("transaction_timeout", timeout) < math.inf:
            raise OptionError(f"transaction_timeout={timeout} must be at least 1 second, or None")
