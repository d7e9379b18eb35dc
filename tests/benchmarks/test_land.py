from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector

from benchmarks.kinesis_replay import Replay, replay_server
from benchmarks.land import CONTENDERS, RECORD_BYTES, SHARDS, Place, run
from benchmarks.s3_server import s3_server
from fanout.testing.s3_clients import BUCKET, s3_files

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES = 4 << 20


@pytest.mark.usefixtures("one_process")
def test_each_peer_has_a_ratio_and_each_contender_a_row() -> None:
    report = run(rounds=1, events=24, file_bytes=FILE_BYTES)
    assert [row.name for row in report.rows] == list(CONTENDERS)
    consumed, local, delta, iceberg, processes, local_loop, s3, s3_loop, uploaded = (
        row.records_per_second for row in report.rows
    )
    assert report.ratios == {
        "land/local/1024/vs_loop": local / local_loop,
        "land/local/1024/vs_consume": local / consumed,
        "land/delta/1024/vs_no_table": delta / local,
        "land/iceberg/1024/vs_no_table": iceberg / local,
        "land/processes/1024/vs_one": processes / local,
        "land/s3/1024/vs_loop": s3 / s3_loop,
        "land/s3/1024/vs_upload": s3 / uploaded,
    }
    for row in report.rows:
        assert row.cpu_seconds_per_million
        assert min(row.records_per_second, row.cpu_seconds_per_million, row.peak_rss_bytes) > 0


async def _two_files(name: str, place: Place) -> int:
    async with aclosing(CONTENDERS[name](place)) as files:
        return (await anext(files)).num_rows + (await anext(files)).num_rows


def test_the_files_of_every_contender_have_the_records_and_the_columns(tmp_path: Path) -> None:
    with replay_server(Replay(RECORD_BYTES, 8, SHARDS)) as port, s3_server() as endpoint:
        landed = tmp_path / "land, local"
        for name in list(CONTENDERS)[1:]:
            directory = tmp_path / name
            directory.mkdir()
            place = Place(
                port=port,
                directory=directory,
                landed=landed,
                endpoint=endpoint if "S3" in name else None,
                file_bytes=FILE_BYTES,
            )
            assert asyncio.run(_two_files(name, place)) > 2 * FILE_BYTES // (RECORD_BYTES * 2), name
        files = s3_files(endpoint)
        on_s3 = [
            pq.read_table(found.path, filesystem=files)
            for found in files.get_file_info(FileSelector(BUCKET, recursive=True))
            if found.path.endswith(".parquet")
        ]
    on_disk = [pq.read_table(path) for path in tmp_path.rglob("*.parquet")]
    assert len(on_s3) >= 6
    assert len(on_disk) >= 4
    for table in on_disk + on_s3:
        assert table.schema.equals(on_disk[0].schema)
        assert {len(data) for data in table["data"].to_pylist()} == {RECORD_BYTES}
