"""The wheel and the source archive, built and installed as users do."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
# Long enough for a slow registry; nothing waits for it unless pip hangs.
pytestmark = pytest.mark.timeout(300)
# What the wheel has.
MODULES = [*(ROOT / "fanout").rglob("*.py"), ROOT / "pyspark_fanout.py"]


def run(*command: str | Path, cwd: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own commands
        [str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd
    )


def succeed(*command: str | Path, cwd: Path = Path("/")) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    built = tmp_path_factory.mktemp("dist")
    succeed(*PIP, "wheel", "--no-deps", "--wheel-dir", built, ROOT)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, without any extra, into an environment that holds nothing else."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    succeed(*PIP, "--python", python, "install", "--constraint", ROOT / "constraints.txt", wheel)
    return home / "bin"


@pytest.mark.long
def test_the_wheel_has_the_library_and_no_prover(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"fanout/py.typed", "fanout/testing/s3a-hadoop-3.5.0.txt"} <= set(names)
    others = {name.split("/")[0] for name in names} - {"fanout", "pyspark_fanout.py"}
    modules = {path.relative_to(ROOT).as_posix() for path in MODULES}
    assert {name for name in names if name.endswith(".py")} == modules
    assert [name for name in others if not name.endswith(".dist-info")] == []


# The library without its provers had 39,100. A commit that needs more says for which capability:
# - 4,500 for the doctor of Kafka, `fanout status`, the first contact, the check of Spark's workers,
#   clean stops by a signal, and development servers.
# - 2,500 for the landing without Spark: object storage, `fanout.land`, followers and their command.
# - 4,500 for landers on Spark's executors: coordinator, control channel, jobs and their checks; and
#   for a landing whose lists lag.
# - 4,000 for the streaming DataFrame: the data source, its options, and Spark's own log of a
#   landing.
# - 3,000 for `fanout tail`, metrics of OpenTelemetry, and the demo of a streaming DataFrame.
# - 3,000 for HTTP/2 and CBOR in the embedded Kinesis, tokens of share groups and of commands,
#   records that cannot be decoded, minimum batches, and traces.
# - 2,000 for sinks of Parquet, Delta Lake, Iceberg and PostgreSQL, and over JDBC.
# - 3,000 for checks of requests in the embedded Kinesis, counters of writers, sinks and landers,
#   the lag of a query's landing, and subscriptions over HTTP/2.
# - 4,500 for what users of other systems met: the columns of a landing, chosen shards, batches that
#   are set aside, values that a table would alter, batches that a sink knows again, throttled
#   brokers, functions that never run, and hints by call and code.
# - 600 for clusters of Kafka in tests and brokers that hang, 550 for the embedded Kinesis of today.
# - 200 for a demo on several nodes, and the meaning of each error code of Kafka.
# - 400 for streams of Kinesis that distribute their records, and their own limits of a record.
# - 2,300 for queues of Kinesis: source, commands, and the embedded server.
# - 3,800 for members: of consumer groups, of lease tables in DynamoDB, and `fanout members`.
# - 250 for logs of Kafka that are cut off, sessions that end, and names with several addresses.
# - 700 for offsets of members in transactions, calls that are repeated, and a demo of queues.
# - 2,300 for typed records: JSON and Avro into columns, with a schema registry.
# - 500 for decoders by options of commands and of Spark, and landings whose schemas evolve.
# - 850 to encode typed records, for schemas in AWS Glue, and for checks of schemas of Avro.
# - 1,080 for tables of Delta and Iceberg that name the files of a landing, and what they refuse.
# - 740 for Protobuf among typed records.
# - 650 and 4 modules for landings by several processes.
# - 600 for directories by values, and for files of bad records.
# - 540 to encode Protobuf, for items that are bounded, and for fields that a schema lacks.
# - 410 and a module for schemas stored with positions, decoders of keys, and GUIDs in headers.
# - 160 for names and libraries that are loaded when they are used.
# - 90 to encode batches together.
# - 230 and a module for bad records of several processes, and for where they were before.
# - 230 for small answers of Kafka at half of the cost, and payloads that do not shrink.
# - 650 and two modules for what newcomers met: logs of landings with gaps, restored tables, topics
#   that were created anew, sessions that are over, and positions that would go back.
# - 330 for arguments of wrong types, and for errors of registries and of Java that name the cause.
# - 105 for ids of topics that positions keep.
# - 85 for writers whose block ends while tasks write, and for failures that last.
# - 10 and a module for `python -m fanout`.
# - 220 and a module for few records of Kafka as one message of Arrow, and requests that cost less.
# Then 8,200 went: private docstrings of one sentence, one engine for the demo and the crash
# campaign, one error of another process, and 78 modules that were no concept of their own. Only a
# new capability raises it.
MAX_LINES, MAX_MODULES = 84_626, 466


def test_the_wheel_does_not_grow_unnoticed() -> None:
    assert sum(path.read_bytes().count(b"\n") for path in MODULES) < MAX_LINES
    assert len(MODULES) <= MAX_MODULES


@pytest.mark.long
def test_the_source_archive_has_what_errors_and_pages_name(tmp_path: Path) -> None:
    succeed(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"constraints.txt", "CHANGELOG.md", "Makefile", "README.md"} <= names


@pytest.mark.long
def test_without_extras_it_imports_and_names_the_extra_of_each_part(empty: Path) -> None:
    code = (
        "import fanout, fanout.kinesis, fanout.kafka, fanout.spark, fanout.testing\n"
        "from fanout.errors import SetupError\n"
        "for module, name in ((fanout.kinesis, 'KinesisSource'), (fanout.kafka, 'KafkaSource'),\n"
        "                     (fanout.spark, 'foreach_batch')):\n"
        "    try:\n"
        "        getattr(module, name)\n"
        "    except SetupError as error:\n"
        "        print(error)\n"
    )
    lines = succeed(empty / "python", "-c", code).splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == [
        "pip install 'fanout-streams[kinesis]'",
        "pip install 'fanout-streams[kafka]'",
        "pip install 'fanout-streams[spark]'",
    ]


@pytest.mark.long
def test_without_its_extra_the_command_says_how_to_get_it(empty: Path) -> None:
    done = run(empty / "fanout", "--help")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        (
            "fanout: the command line needs typer, which is not installed: "
            "pip install 'fanout-streams[cli]'"
        )
    ]
