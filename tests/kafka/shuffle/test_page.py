"""The example of a writer in docs/shuffle.md."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.kafka.shuffle_reading import drain
from tests.support.kafka.topics import Topic
from tests.support.kafka.transacting import reported

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

PAGE = (Path(__file__).parents[3] / "docs" / "shuffle.md").read_text()


def test_the_example_of_asyncio_writes_its_rows(kafka_broker: KafkaBroker) -> None:
    (code,) = re.findall(r"```python\n(import asyncio\n.*?)```", PAGE, re.DOTALL)
    topic = Topic(kafka_broker, partitions=3, name="orders-of-asyncio")
    code = code.replace("broker-1:9093", kafka_broker.bootstrap_servers)
    code = code.replace('"SSL"', '"PLAINTEXT"').replace("orders-by-user", topic.name)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the page is ours
    asyncio.run(reported(kafka_broker, f"fanout-{topic.name}-producer-0"))
    found = asyncio.run(drain(topic))
    assert sorted(row for part in found.records.values() for row in part) == [
        ("ann", "7", 1_700_000_000_000),
        ("bob", "9", 1_700_000_001_000),
    ]
    assert found.watermark == 1_699_999_995_999
