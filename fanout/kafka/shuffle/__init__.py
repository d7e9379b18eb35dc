"""Records distributed by key over the partitions of a Kafka topic, with their watermarks.

The topic holds frames. docs/shuffle.md describes them, and the duties of writers and readers.
"""

from fanout.kafka.shuffle.producers import Activity, Producers, ProducerState
from fanout.kafka.shuffle.reader import producers_at
from fanout.kafka.shuffle.source import ShuffleSource
from fanout.kafka.shuffle.writer import ShuffleWriter, open_shuffle_writer
from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions

__all__ = (
    "Activity",
    "ProducerState",
    "Producers",
    "ShuffleSource",
    "ShuffleWriter",
    "ShuffleWriterOptions",
    "open_shuffle_writer",
    "producers_at",
)
