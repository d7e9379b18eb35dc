"""The options that a source of Kafka has, whether it reads partitions or a share group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fanout.core.backoff import Backoff
from fanout.core.option_checks import check_text
from fanout.core.source_options import SourceOptions
from fanout.core.user_decode import check_decode
from fanout.kafka.cluster import check_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from fanout.kafka.cluster import Cluster

_BACKOFF: Final = Backoff(base=0.5, cap=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReadOptions(SourceOptions):
    """Options of every Kafka source; see also `SourceOptions`. All times are in seconds."""

    cluster: Cluster
    group_id: str | None = None
    client_rack: str | None = None
    decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    backoff: Backoff = _BACKOFF
    discovery_interval: float | None = 60.0
    consumer_options: Mapping[str, str | int] = field(default_factory=dict, hash=False)

    def check_client(self) -> None:
        """Check the options of this class."""
        self.check_reading()
        check_cluster(self.cluster)
        for name in ("group_id", "client_rack"):
            check_text(name, getattr(self, name))
        check_decode(self.decode)
