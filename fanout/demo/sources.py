"""The source that a Spark driver reads, as its command line describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final

import msgspec

from fanout.core.event_time import EventTime
from fanout.demo.records import OUT_OF_ORDERNESS

if TYPE_CHECKING:
    from fanout.core.source import Source

__all__ = ("KafkaSettings", "KinesisSettings", "ShuffleSettings", "SourceSettings", "make_source")

# New partitions are to be found while the run lasts; who reads for days looks once a minute.
_DISCOVERY_INTERVAL = 1.0


@final
class KinesisSettings(msgspec.Struct, frozen=True, tag=True):
    """A stream of the embedded Kinesis.

    Args:
        stream: Its name.
        endpoint_url: Where Kinesis is.
        region: The region that it stands for.
        silence_timeout: Seconds of silence after which a subscription is given up.
    """

    stream: str
    endpoint_url: str
    region: str
    silence_timeout: float


@final
class KafkaSettings(msgspec.Struct, frozen=True, tag=True):
    """A topic of a broker on this machine.

    Args:
        topic: Its name.
        bootstrap_servers: Where the broker is.
    """

    topic: str
    bootstrap_servers: str


@final
class ShuffleSettings(msgspec.Struct, frozen=True, tag=True):
    """A topic between two queries, in which records are distributed by their keys.

    Args:
        topic: Its name.
        bootstrap_servers: Where the broker is.
        partitions: How many partitions it has.
    """

    topic: str
    bootstrap_servers: str
    partitions: int


SourceSettings: TypeAlias = KinesisSettings | KafkaSettings | ShuffleSettings


def make_source(settings: SourceSettings) -> Source:
    """Return a source that begins with the oldest record; its service alone is imported."""
    match settings:
        case KinesisSettings():
            from fanout.kinesis import KinesisSource  # noqa: PLC0415 - see above

            return KinesisSource(
                stream=settings.stream,
                consumer="fanout-demo",
                start="TRIM_HORIZON",
                silence_timeout=settings.silence_timeout,
                endpoint_url=settings.endpoint_url,
                region=settings.region,
            )
        case KafkaSettings():
            from fanout.kafka import KafkaSource, Security  # noqa: PLC0415 - see above

            return KafkaSource(
                topics=settings.topic,
                bootstrap_servers=settings.bootstrap_servers,
                security=Security(protocol="PLAINTEXT"),
                discovery_interval=_DISCOVERY_INTERVAL,
                event_time=EventTime(out_of_orderness=OUT_OF_ORDERNESS),
            )
        case ShuffleSettings():
            from fanout.demo.shuffle import make_shuffle  # noqa: PLC0415 - see above

            return make_shuffle(settings).source
