"""Typed records: what is in the bytes of a record as columns, for `decode=` of every source.

from fanout.decoding import Json

source = KafkaSource(cluster=cluster, topics="orders", decode=Json("id BIGINT, name STRING"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.decoding.avro_decoder import Avro
    from fanout.decoding.glue_registry import GlueSchemaRegistry
    from fanout.decoding.json_decoder import Json
    from fanout.decoding.protobuf_decoder import Protobuf
    from fanout.decoding.registry import SchemaRegistry

__all__ = ("Avro", "GlueSchemaRegistry", "Json", "Protobuf", "SchemaRegistry")

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Avro": "fanout.decoding.avro_decoder",
        "GlueSchemaRegistry": "fanout.decoding.glue_registry",
        "Json": "fanout.decoding.json_decoder",
        "Protobuf": "fanout.decoding.protobuf_decoder",
        "SchemaRegistry": "fanout.decoding.registry",
    },
)
