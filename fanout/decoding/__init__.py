"""Typed records: what is in the bytes of a record as columns, for `decode=` of every source.

from fanout.decoding import Json

source = KafkaSource(cluster=cluster, topics="orders", decode=Json("id BIGINT, name STRING"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.decoding.json_decoder import Json

__all__ = ("Json",)

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Json": "fanout.decoding.json_decoder",
    },
)
