from __future__ import annotations

import json
from functools import partial

import pyarrow as pa
import pytest

from benchmarks import __main__ as cli
from benchmarks import decode
from benchmarks.decode import Workload, decode_by_botocore, decode_by_fanout, run

SMALL = Workload(record_bytes=100, records=2000, events=3)


def test_the_same_body_is_made_each_time_in_chunks_of_64_kib() -> None:
    chunks = SMALL.chunks()
    assert chunks == SMALL.chunks()
    assert {len(chunk) for chunk in chunks[:-1]} == {64 * 1024}


def test_both_contenders_build_the_same_columns() -> None:
    chunks = SMALL.chunks()
    ours = pa.Table.from_batches(decode_by_fanout(chunks))
    theirs = pa.Table.from_batches(decode_by_botocore(chunks))
    assert ours.num_rows == 6000
    assert ours.equals(theirs)


def test_the_report_of_one_scenario_is_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = cli.Scenario(partial(run, workloads=[SMALL]), partial(run, 1, workloads=[SMALL]))
    monkeypatch.setitem(cli.SCENARIOS, "decode", {"kinesis": small})
    cli.main(["decode", "--rounds", "1", "--json"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report.keys() == {"scenario", "machine", "rows", "ratios", "seconds", "costs"}
    assert report["ratios"].keys() == {"decode/100/vs_botocore"}
    assert [(row["name"], row["record_bytes"]) for row in report["rows"]] == [
        ("fanout", 100),
        ("botocore", 100),
    ]
    assert all(
        row[figure] > 0
        for row in report["rows"]
        for figure in ("records_per_second", "bytes_per_second", "peak_rss_bytes")
    )


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["--rounds", "0"], ["--source", "nothing"], ["decode", "--source", "kafka"]],
)
def test_a_wrong_argument_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)


def test_the_workloads_are_one_kib_and_a_hundred_bytes() -> None:
    assert [workload.record_bytes for workload in decode.WORKLOADS] == [1024, 100]
