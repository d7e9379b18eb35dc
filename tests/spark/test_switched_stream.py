"""A stream that is switched to AUTO and back, while a query and a DataFrame on it are killed."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.spark.doomed_driver import run_and_kill
from tests.spark.switched_driver import KINDS, written

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pyspark.sql.datasource", reason="streaming DataFrames need pyspark 4")

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]

PHASES = ("USER_PARTITION_KEY", "AUTO", "USER_PARTITION_KEY")
RECORDS = 150


def check(directory: Path, sent: Counter[tuple[str | None, bytes]]) -> None:
    """Each record once, without a key where it had none, those of a shard in order of batches."""
    rows = written(directory)
    assert Counter((row["partitionKey"], bytes(row["data"])) for row in rows) == sent
    newest: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for row in rows:
        newest[row["shardId"]].append((row["batch"], int(row["sequenceNumber"])))
    assert len(newest) == 3
    for numbers in newest.values():
        batches = dict.fromkeys(batch for batch, _ in numbers)
        parts = [[number for of, number in numbers if of == batch] for batch in batches]
        assert all(max(a) < min(b) for a, b in pairwise(parts))


@pytest.mark.usefixtures("aws")
def test_a_query_and_a_dataframe_of_a_switched_stream_have_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: Counter[tuple[str | None, bytes]] = Counter()
    with KinesisServer(KinesisRules.fast()) as server:
        for name, value in (server.environment | {"PYSPARK_PYTHON": sys.executable}).items():
            monkeypatch.setenv(name, value)
        server.create_stream("orders", 3)
        stream = server._stream("orders")
        stream.stream_mode = {"StreamMode": "ON_DEMAND"}
        for phase, strategy in enumerate(PHASES):
            stream.set_strategy(strategy)
            keyless = 3 if strategy == "AUTO" else RECORDS * 2
            records = [
                (None if number % keyless == 1 else f"key-{number % 7}", b"%d %d" % (phase, number))
                for number in range(2, RECORDS + 2)
            ]
            server.put_records("orders", records)
            sent.update(records)
            # Killed in the middle of each phase, and at the end after all of it.
            wanted = sent.total() - (RECORDS // 2 if phase < len(PHASES) - 1 else 0)
            run_and_kill(
                server.endpoint_url,
                str(tmp_path),
                str(wanted),
                module="tests.spark.switched_driver",
            )
    assert sum(key is None for key, _ in sent.elements()) == RECORDS // 3
    for kind in KINDS:
        check(tmp_path / kind, sent)
