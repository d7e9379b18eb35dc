"""`fanout land`, from an embedded Kinesis to disks and moto's S3."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import boto3
import deltalake
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.kafka.cluster import Server
from fanout.landing.retention import Retention
from fanout.landing.storage import object_clients
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from fanout.testing.s3_clients import BUCKET
from fanout.testing.s3_server import serve_s3
from tests.support.commands import ENVIRONMENT, FANOUT
from tests.support.kafka.first_contact import CONNECT_TIMEOUT, ended_once_seen
from tests.support.patience import PATIENCE
from tests.support.s3 import s3_client
from tests.support.s3_faults import after, faulty_s3, unanswered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

CONTACT = ["--connect-timeout", f"{CONNECT_TIMEOUT:g}"]
MONTH = 31 * 24 * 3600 * 1000


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with KinesisServer(KinesisRules.fast()) as server:
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with serve_s3() as endpoint:
        yield endpoint


@final
class Stream:
    """A stream of one shard, and what a command calls it."""

    def __init__(self, server: KinesisServer) -> None:
        self.server = server
        self.name = f"orders-{uuid.uuid4().hex}"
        self.source = f"kinesis://{self.name}"
        server.create_stream(self.name)

    def put(self, *numbers: int) -> None:
        self.server.put_records(self.name, ((str(n), b"%d" % n) for n in numbers))

    def delete(self) -> None:
        client = boto3.client("kinesis", **self.server.client_options)
        client.delete_stream(StreamName=self.name, EnforceConsumerDeletion=True)
        client.close()


@pytest.fixture
def stream(
    kinesis: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Stream:
    for name, value in kinesis.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(object_clients._RETRY, "retry_timeout", timedelta(seconds=0.2))
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Stream(kinesis)


def land(*arguments: str) -> Result:
    settings = {"COLUMNS": "240", "TERM": "dumb"}
    return CliRunner().invoke(app, ["land", *arguments], env=settings)


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def landed(*arguments: str) -> list[dict[str, Any]]:
    """Run the command until it has landed what is there; return the entries, and their sum."""
    result = land(*arguments, "--available-now", "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return lines(result.stdout)


def content(directory: Path) -> list[int]:
    """Return the numbers that a plain reader of the files finds."""
    column = pq.read_table(directory / "segments").column("data")
    return sorted(int(data) for data in column.to_pylist())


def test_directories_by_values_and_files_of_bad_records(stream: Stream, tmp_path: Path) -> None:
    for number, country in enumerate(["DE", "FR", "DE"]):
        order = json.dumps({"id": number, "country": country, "at": f"2026-11-27T0{number}:00:00Z"})
        stream.server.put_records(stream.name, [("key", order.encode())])
    stream.put(7)
    schema = "id BIGINT, country STRING, at TIMESTAMP"
    typed = ["--decode", "json", "--schema", schema, "--bad-records", str(tmp_path / "bad")]
    by = ["--partition-by", "country", "--partition-by", "day(at)", "--partition-by", "hour(at)"]
    to = tmp_path / "to"
    entry, total = landed(stream.source, str(to), *typed, *by)
    assert (entry["rows"], total["rows"]) == (3, 3)
    assert [file.removeprefix(f"{to}/segments/").rpartition("/")[0] for file in entry["files"]] == [
        "country=DE/at_day=2026-11-27/at_hour=2026-11-27-00",
        "country=DE/at_day=2026-11-27/at_hour=2026-11-27-02",
        "country=FR/at_day=2026-11-27/at_hour=2026-11-27-01",
    ]
    (file,) = (tmp_path / "bad").rglob("*.parquet")
    assert pq.read_table(file, partitioning=None).column("data").to_pylist() == [b"7"]
    stream.put(8)
    done = land(stream.source, str(to), *typed, *by, "--available-now")
    assert done.exit_code == 0
    assert done.stdout.startswith("no file: 0 records, 0.0 MB")


def test_a_table_has_what_was_landed_and_status_says_so(stream: Stream, tmp_path: Path) -> None:
    stream.put(*range(100))
    to = str(tmp_path / "to")
    assert landed(stream.source, to, "--table", "delta")[-1]["rows"] == 100
    assert deltalake.DeltaTable(f"{to}/segments").count() == 100
    assert status(to, "--table", "delta") == (0, f"the Delta table file://{to}/segments", 0, None)
    stream.put(100)
    landed(stream.source, to)
    assert status(to, "--table", "delta") == (1, f"the Delta table file://{to}/segments", 2, None)
    result = land(stream.source, to, "--available-now", "--table", "iceberg:nowhere/db.orders")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(
        "fanout land: the Iceberg table db.orders of nowhere is "
    )
    assert status(to, "--table", "iceberg:nowhere/db.orders")[0] == 1


HANGS = """
import threading
from pyiceberg.utils.concurrent import ExecutorFactory
from fanout.cli import main
from fanout.landing.projections import iceberg, table_projection

def hangs(*_):
    ExecutorFactory.get_or_create().submit(threading.Event().wait).result()

iceberg._Iceberg.newest = hangs
table_projection._COMMIT_SECONDS = 0.5
main()
"""


@pytest.mark.long
def test_a_request_of_a_table_that_never_ends_does_not_keep_the_process(
    stream: Stream, tmp_path: Path
) -> None:
    stream.put(1)
    table = "iceberg:nowhere/db.orders"
    command = ["land", stream.source, str(tmp_path / "to"), "--available-now", "--table", table]
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", HANGS, *command],
        env=ENVIRONMENT | stream.server.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("landed 1 records in 1 entries")
    assert done.stderr.splitlines()[-1].endswith("behind: it does not answer for 0 s")


def status(*arguments: str) -> tuple[int, str, int, str | None]:
    """Return the exit code, and what is told of a table."""
    result = CliRunner().invoke(app, ["status", *arguments, "--json"])
    (told,) = json.loads(result.stdout)["tables"]
    return result.exit_code, told["table"], told["entries_behind"], told["error"]


def test_a_table_of_another_kind_is_refused(stream: Stream, tmp_path: Path) -> None:
    for name in ("hudi", "iceberg", "iceberg:db.orders", "iceberg:lake/orders", "delta:x"):
        result = land(stream.source, str(tmp_path), "--table", name)
        assert result.exit_code == 2
        assert result.stderr.strip() == (
            f"fanout land: --table {name} must be delta, or iceberg:CATALOG/DB.TABLE"
        )


@pytest.mark.long
def test_a_name_that_the_output_cannot_show_ends_no_landing(stream: Stream, tmp_path: Path) -> None:
    stream.put(1)
    directory = tmp_path / "注文"
    ran = subprocess.run(  # noqa: S603 - our own code
        [*FANOUT, "land", stream.source, str(directory), "--available-now"],
        env=ENVIRONMENT | stream.server.environment | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert r"/\u6ce8\u6587/segments/run-000001-00000001.parquet: 1 records" in ran.stdout
    assert content(directory) == [1]


def test_people_get_a_line_for_each_file_and_a_sum(stream: Stream, tmp_path: Path) -> None:
    stream.put(*range(1500))
    result = land(stream.source, str(tmp_path / "to"), "--available-now", "--max-records", "1000")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    first, second, total = result.stdout.splitlines()
    file = tmp_path / "to" / "segments" / "run-000001-00000001.parquet"
    # How far it is behind is not known at every moment.
    assert re.fullmatch(
        r"1,000 records, 0\.0 MB(, \d+\.\d s behind)?", first.removeprefix(f"{file}: ")
    )
    assert ": 500 records, " in second
    assert total == "landed 1,500 records in 2 entries, 0.0 MB"
    assert content(tmp_path / "to") == [*range(1500)]


def test_several_streams_are_landed_together(stream: Stream, tmp_path: Path) -> None:
    other = Stream(stream.server)
    stream.put(*range(10))
    other.put(*range(10, 30))
    landed(f"{stream.source},{other.name}", str(tmp_path))
    stream.put(30)
    landed(f"{stream.source},{other.name}", str(tmp_path))
    assert content(tmp_path) == [*range(31)]
    streams = pq.read_table(tmp_path / "segments").column("stream").to_pylist()
    assert (streams.count(stream.name), streams.count(other.name)) == (11, 20)


@pytest.mark.parametrize("consumer", [[], ["--consumer", "lander"]], ids=["polled", "pushed"])
def test_a_command_continues_where_the_one_before_it_stopped(
    stream: Stream, tmp_path: Path, consumer: list[str]
) -> None:
    command = [stream.source, str(tmp_path), "--compression", "gzip", *consumer]
    stream.put(1, 2)
    first, total = landed(*command)
    assert first.keys() == {"entry", "files", "rows", "bytes", "lag"}
    assert first["rows"] == 2
    assert total == {"entries": 1, "rows": 2, "bytes": first["bytes"]}
    stream.put(3)
    second, _ = landed(*command)
    assert second["rows"] == 1
    assert second["entry"] > first["entry"]
    assert landed(*command) == [{"entries": 0, "rows": 0, "bytes": 0}]
    files = [file for entry in (first, second) for file in entry["files"]]
    assert files == sorted(map(str, (tmp_path / "segments").glob("*.parquet")))
    assert content(tmp_path) == [1, 2, 3]
    found = pq.ParquetFile(files[0]).metadata.row_group(0).column(0)
    assert found.compression == "GZIP"


def test_a_bucket_by_storage_options(stream: Stream, s3: str) -> None:
    stream.put(1)
    options = ["--storage-option", f"endpoint={s3}", "--storage-option", "region=us-east-1"]
    entry, _ = landed(stream.source, f"s3://{BUCKET}/a", *options)
    (file,) = entry["files"]
    client = s3_client(s3)
    found = client.list_objects_v2(Bucket=BUCKET, Prefix="a/segments/run-")["Contents"]
    client.close()
    assert [f"s3://{BUCKET}/{one['Key']}" for one in found] == [file]


def test_what_is_older_than_it_is_kept_is_deleted(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [stream.source, str(tmp_path), "--keep", "30d"]
    stream.put(1)
    landed(*command)
    stream.put(2)
    landed(*command)
    assert content(tmp_path) == [1, 2]
    now = Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + MONTH))
    stream.put(3)
    landed(*command)
    assert content(tmp_path) == [3]


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(  # noqa: S603 - our own code
        [*FANOUT, "land", *arguments, "--json"],
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def scrape(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own server's
        text: str = answer.read().decode()
    return text


@pytest.mark.long
def test_prometheus_reads_what_was_landed_until_the_end(stream: Stream, tmp_path: Path) -> None:
    stream.put(*range(5))
    command = [stream.source, str(tmp_path), "--max-records", "5"]
    port = ["--metrics-port", "127.0.0.1:0"]
    with running(*command, *port, **stream.server.environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stderr.readline()
        url = re.fullmatch(r"metrics are at (http://127\.0\.0\.1:\d+/metrics)\n", said)
        assert url is not None, said
        assert json.loads(process.stdout.readline())["rows"] == 5
        text = scrape(url[1])
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate()
    assert (process.returncode, rest) == (0, "")
    read = re.search(
        r'^messaging_client_consumed_messages_total{[^}]*destination_name="([^"]*)"[^}]*} (\S+)$',
        text,
        re.MULTILINE,
    )
    assert read is not None, text
    assert (read[1], float(read[2])) == (stream.name, 5.0)
    assert "process_resident_memory_bytes" in text
    with pytest.raises(urllib.error.URLError):
        scrape(url[1])


@pytest.mark.parametrize(
    ("port", "words"),
    [
        ("nine", "--metrics-port nine must be a port, or an address and a port, such as 9464 or"),
        ("70000", "--metrics-port 70000 must be a port"),
        (
            "TAKEN",
            r"--metrics-port 127\.0\.0\.1:\d+ cannot be used: Address already in use; pass an",
        ),
    ],
)
def test_a_port_that_cannot_be_used_is_refused_before_anything_is_read(
    stream: Stream, tmp_path: Path, port: str, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = port.replace("TAKEN", f"127.0.0.1:{taken.getsockname()[1]}")
        result = land(stream.source, str(tmp_path / "to"), "--metrics-port", port)
    assert result.exit_code == 2
    assert re.match(f"fanout land: {words}", result.stderr), result.stderr
    assert not (tmp_path / "to").exists()


@pytest.mark.long
def test_sigterm_ends_it_when_what_was_read_is_landed(stream: Stream, tmp_path: Path) -> None:
    stream.put(*range(8))
    command = [stream.source, str(tmp_path), "--max-wait", "3600", "--max-records", "5"]
    with running(*command, **stream.server.environment) as process:
        assert process.stdout is not None
        # The other three came with them, and wait for the hour to pass.
        assert json.loads(process.stdout.readline())["rows"] == 5
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")
    second, total = lines(stdout)
    assert (second["rows"], total["rows"]) == (3, 8)
    assert content(tmp_path) == [*range(8)]
    assert landed(*command)[-1]["rows"] == 0


@pytest.mark.long
def test_sigterm_ends_it_while_it_waits_for_the_service(stream: Stream, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [stream.source, str(tmp_path), "--endpoint-url", endpoint]
        with running(*command, **stream.server.environment) as process, silent.accept()[0]:
            process.send_signal(signal.SIGTERM)
            assert process.communicate() == ("", "")
    assert process.returncode == 130


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "number"),
    [("PUT", signal.SIGTERM), ("PUT", signal.SIGINT), ("GET", signal.SIGTERM)],
    ids=["upload-SIGTERM", "upload-SIGINT", "opening-SIGTERM"],
)
def test_a_second_signal_ends_it_at_once_while_the_service_does_not_answer(
    stream: Stream, s3: str, method: str, number: signal.Signals
) -> None:
    stream.put(*range(8))
    command = [stream.source, f"s3://{BUCKET}/{uuid.uuid4().hex}", "--max-wait", "0"]
    held = threading.Event()

    def rule(request: Any) -> Any:
        part = "/segments/" if method == "PUT" else "/origin.json"
        return (
            after(held.set, unanswered)
            if request.command == method and part in request.path
            else None
        )

    def at(endpoint: str) -> list[str]:
        options = [f"endpoint={endpoint}", "region=us-east-1", "timeout=180s"]
        return command + [part for one in options for part in ("--storage-option", one)]

    with faulty_s3(s3) as proxy:
        proxy.follow(rule)
        with running(*at(proxy.endpoint), **stream.server.environment) as process:
            assert held.wait(PATIENCE)  # the process has to start first
            began = time.monotonic()
            while process.poll() is None:
                process.send_signal(number)
                time.sleep(0.05)  # as a user does who presses Ctrl-C again and again
            took = time.monotonic() - began
            stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (128 + number, "")
    assert stderr == (
        f"fanout land: a second signal came, {number.name}: the command ends at once; the next one "
        f"continues after the last entry\n"
    )
    assert took < PATIENCE  # a request is given up after 180 s
    entry, total = landed(*at(s3))
    assert (entry["rows"], total["rows"]) == (8, 8)


def refused(command: list[str], sentence: str) -> None:
    result = land(*command)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("fanout land: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert sentence in result.stderr, result.stderr
    assert "canary" not in result.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["orders", "{here}"], "SOURCE 'orders' must be kinesis://STREAM or kafka://TOPIC"),
        (["kinesis://", "{here}"], "SOURCE 'kinesis://' must be kinesis://STREAM or kafka://TOPIC"),
        (["kinesis://none", "{here}"], "the stream 'none' cannot be described: "),
        (["kafka://orders", "{here}"], "pass --bootstrap-servers, or set "),
        (
            ["kafka://orders", "{here}", "--bootstrap-servers", "{dead}", *CONTACT],
            "the cluster cannot be reached: {dead}: no server listens",
        ),
        (
            ["{stream}", "s3://none/there", "--storage-option", "endpoint={s3}"],
            "the bucket 'none' does not exist; create it, or correct the location",
        ),
        (
            ["{stream}", "s3://lake/there", "--storage-option", "endpoint=http://{dead}"],
            "the service at {dead} cannot be reached, ",
        ),
        (
            ["{stream}", "hdfs://name/there"],
            "LOCATION 'hdfs://name/there' must be a path, or a URI",
        ),
        (["{stream}", "{file}"], "cannot use {file}: "),
        (
            ["{stream}", "s3://lake/there", "--storage-option", "secret_access_key=canary"],
            "--storage-option has 'secret_access_key': a secret would show in the list",
        ),
        (
            ["{stream}", "s3://lake/there", "--storage-option", "region"],
            "--storage-option region must be NAME=VALUE",
        ),
        (
            ["{stream}", "s3://lake/there", "--storage-option", "regoin=eu"],
            "regoin is no storage option of S3",
        ),
        (
            ["{stream}", "{here}", "--storage-option", "region=eu"],
            "--storage-option can only be given for object storage, and LOCATION '{here}' is on",
        ),
        (
            ["{stream}", "{here}", "--keep", "0d"],
            "--keep=0:00:00 must be longer than nothing; leave",
        ),
        (
            ["{stream}", "{here}", "--keep-for-readers", "0d"],
            "--keep-for-readers=0:00:00 must be longer than nothing; 7 days",
        ),
        (["{stream}", "{here}", "--max-wait", "-1"], "--max-wait -1 must not be negative"),
        (["{stream}", "{here}", "--max-records", "0"], "--max-records 0 must be at least 1"),
        (
            ["{stream}", "{here}", "--compression", "tar"],
            "--compression tar is not understood; use ",
        ),
        (
            ["{stream}", "{here}", "--partition-by-date", "none"],
            "--partition-by-date none",
        ),
        (
            ["{stream}", "{here}", "--partition-by", "day(data)"],
            "--partition-by 'day(data)' must be a column with times: approximateArrival",
        ),
        (
            ["{stream}", "{here}", "--bad-records", "{here}/bad"],
            "--bad-records is about --decode: pass --decode, or leave it out",
        ),
        (
            ["{stream}", "{here}", "--start", "yesterday"],
            "--start yesterday must be TRIM_HORIZON, LATEST, earliest, latest, or a time with its ",
        ),
        (
            ["kafka://a", "{here}", "--bootstrap-servers", "{dead}", "--start", "yesterday"],
            "--start yesterday must be earliest, latest, committed, or a time with its zone",
        ),
        (["{stream}", "{here}", "--start", "2026-11-22T08"], "--start 2026-11-22T08 must be "),
        (
            ["{stream}", "{here}", "--on-data-loss", "never"],
            "--on-data-loss never is not understood; use 'fail' or 'earliest'",
        ),
        (["{stream}", "{here}", "--group", "etl"], "--group etl cannot be used with kinesis://"),
        (
            ["kafka://orders", "{here}", "--consumer", "etl"],
            "--consumer etl cannot be used with kafka://",
        ),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_what_is_wrong_is_one_sentence_in_words_of_the_options(
    stream: Stream, tmp_path: Path, s3: str, command: list[str], sentence: str
) -> None:
    (tmp_path / "file").touch()
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        dead = Server(*kept.getsockname())
        values = {
            "here": str(tmp_path / "here"),
            "file": str(tmp_path / "file"),
            "dead": str(dead),
            "s3": s3,
            "stream": stream.source,
        }
        with ended_once_seen(dead):
            refused([part.format(**values) for part in command], sentence.format(**values))


def test_an_age_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    result = land("kinesis://orders", str(tmp_path), "--keep", "long")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for '--keep': 'long' is not an age such as 90m, 12h" in result.stderr


def test_missing_credentials_of_a_bucket_are_not_asked_for_as_options(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, s3: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    command = [stream.source, f"s3://{BUCKET}/there", "--storage-option", f"endpoint={s3}"]
    result = land(*command)
    assert result.exit_code == 2
    assert result.stderr == (
        "fanout land: no AWS credentials were found; log in or set AWS_PROFILE\n"
    )


def test_the_landing_of_another_source_is_refused(stream: Stream, tmp_path: Path) -> None:
    landed(stream.source, str(tmp_path))
    other = Stream(stream.server)
    sentence = f"{tmp_path} cannot be continued: the stored positions belong to "
    refused([other.source, str(tmp_path)], sentence)


@pytest.mark.long
def test_the_failure_of_the_source_is_one_sentence(stream: Stream, tmp_path: Path) -> None:
    stream.put(*range(8))
    command = [stream.source, str(tmp_path), "--max-wait", "0"]
    with running(*command, **stream.server.environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        stream.delete()
        _, stderr = process.communicate()
    assert process.returncode == 2
    assert "Traceback" not in stderr
    # Warnings of the library may come before it.
    assert re.match(r"fanout land: .* cannot go on: .*it was deleted", stderr.splitlines()[-1]), (
        stderr
    )
    assert content(tmp_path) == [*range(8)]
