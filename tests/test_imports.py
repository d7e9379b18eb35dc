from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.public_interface import MODULES
from tests.support.syntax import statements

if TYPE_CHECKING:
    from collections.abc import Iterator

# `make check` runs them, and so does `make test-all`.
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fanout"

# What each part of the library may import, itself included.
MAY_IMPORT = {
    "": {"_exports", "core", "landers", "landing", "errors"},
    "_child_process": set(),
    "_exports": {"errors"},
    "_secret_variables": set(),
    "errors": {"core", "errors"},
    "core": {"core", "errors"},
    "decoding": {"decoding", "kinesis", "_exports", "_secret_variables", "core", "errors"},
    "kinesis": {"kinesis", "_exports", "core", "errors"},
    "kafka": {"kafka", "_exports", "core", "errors"},
    "landing": {"landing", "_exports", "core", "errors"},
    "landers": {"landers", "_exports", "landing", "core", "errors"},
    "metrics": {"metrics", "_exports", "core", "errors"},
    "spark": {
        "spark",
        "_child_process",
        "_exports",
        "_secret_variables",
        "decoding",
        "kafka",
        "kinesis",
        "landers",
        "landing",
        "core",
        "errors",
    },
}
MAY_IMPORT_EVERYTHING = {
    "__main__",
    "testing",
    "cli",
    "demo",
}
# The order inside a room: what is in a row may import the rows before it, and the modules of its
# own row. The folders of a row do not import each other.
ROWS_OF_ROOM = {
    "kinesis": (
        {"aws"},
        {"intervals", "policy", "control_calls", "registration", "shards", "starting_position"}
        | {"deduplication", "iam", "open_files"},
        {"reading", "writing"},
        {"options", "stream_positions", "chosen_shards", "closed_shards", "takeovers"},
        {"connection", "streams_connection", "opening", "source", "writer", "consumers"},
        {"leases"},
        {"queue"},
        {"doctor"},
    ),
    "kafka": (
        {"intervals", "partitions", "dotted_options", "security", "client_properties", "cluster"},
        {"protocol"},
        {"reading"},
        {"group"},
        {"transactions"},
        {"writing"},
        {"share"},
        {"shuffle"},
        {"doctor"},
    ),
    "landing": (
        {"storage"},
        {"segments"},
        {"claims"},
        {"log"},
        {"spark_log", "retention"},
        {"projections"},
        {"lander"},
    ),
    "spark": (
        {"hadoop"},
        {"workers"},
        {"landers"},
        {"query", "dataframe"},
        {"sinks"},
    ),
}
# What every room of tests may import; the pages count the planted bugs, and a DataFrame is tested
# with one.
SHARED_BY_TESTS = {"support", "jars"}
OTHER_ROOMS_OF_TESTS = {
    "docs": {"provers"},
    "provers": {"landing"},
    "spark": {"landing", "provers"},
}
HEAVY = [
    "pyspark",
    "aioboto3",
    "aiobotocore",
    "aiokafka",
    "cryptography",
    "deltalake",
    "pyarrow.parquet",
    "moto",
    "numpy",
    "obstore",
    "opentelemetry",
    "pyiceberg",
    "websockets",
]

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def part_of(module: str) -> str:
    """The part of the library that a module belongs to: the first name below `fanout`."""
    return [*module.split("."), ""][1]


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Return every module that a file imports, within functions and TYPE_CHECKING too."""
    return tuple(_imports(ast.parse(path.read_text())))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in statements(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                # `from fanout import core` imports fanout.core: each name may be a module.
                yield from (f"{module}.{name.name}" for name in names)
            case ast.ImportFrom():
                yield "fanout.relative-import"
            case _:
                pass


def test_the_rules_name_every_part() -> None:
    parts = {part_of(module_of(path)) for path in FILES}
    assert parts <= MAY_IMPORT.keys() | MAY_IMPORT_EVERYTHING


def test_imports_point_one_way() -> None:
    wrong: dict[str, set[str]] = {}
    for path in FILES:
        module = module_of(path)
        part = part_of(module)
        if part not in MAY_IMPORT_EVERYTHING:
            own = (name for name in imports_of(path) if name.split(".")[0] == "fanout")
            wrong[module] = {part_of(name) for name in own} - MAY_IMPORT[part]
    assert {module: parts for module, parts in wrong.items() if parts} == {}


def is_other_folder(room: str, name: str, own: str) -> bool:
    row = next(row for row in ROWS_OF_ROOM[room] if own in row)
    return name != own and name in row and (PACKAGE / room / name).is_dir()


@pytest.mark.parametrize("room", ROWS_OF_ROOM)
def test_imports_within_a_room_point_one_way(room: str) -> None:
    row_of = {name: row for row, names in enumerate(ROWS_OF_ROOM[room]) for name in names}
    parts = {path: module_of(path).split(".")[2:] for path in (PACKAGE / room).rglob("*.py")}
    assert {names[0] for names in parts.values() if names} == row_of.keys()
    wrong = {
        f"{'.'.join(names)} imports {name}"
        for path, names in parts.items()
        for name in imports_of(path)
        if names
        and name.startswith(f"fanout.{room}.")
        # A name of the room itself comes from its __init__, which stands above all rows.
        and (
            row_of.get(name.split(".")[2], len(row_of)) > row_of[names[0]]
            or is_other_folder(room, name.split(".")[2], names[0])
        )
    }
    assert wrong == set()


def test_a_room_of_tests_imports_no_other_one() -> None:
    tests = ROOT / "tests"
    rooms = {path.name for path in tests.iterdir() if path.is_dir()}
    wrong: set[str] = set()
    for room in rooms:
        others = rooms - {room} - SHARED_BY_TESTS - OTHER_ROOMS_OF_TESTS.get(room, set())
        wrong |= {
            f"{module_of(path)} imports {name}"
            for path in (tests / room).rglob("*.py")
            for name in imports_of(path)
            if name.startswith("tests.") and part_of(name) in others
        }
    assert wrong == set()


def test_no_module_imports_itself_through_others() -> None:
    files = [*FILES, *(ROOT / "tests" / "provers").rglob("*.py")]
    modules = {module_of(path): path for path in files}

    def imported(path: Path) -> set[str]:
        # `from a.b import c` imports a.b.c where that is a module, and else a.b.
        names = {name if name in modules else name.rpartition(".")[0] for name in imports_of(path)}
        return names & modules.keys() - {module_of(path)}

    graph = {module: imported(path) for module, path in modules.items()}
    assert sum(map(len, graph.values())) > 1_000
    order = [*TopologicalSorter(graph).static_order()]  # raises CycleError with the modules
    assert order.index("fanout.core.events") < order.index("fanout.kinesis.source")


def test_no_class_name_exists_twice() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in statements(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 100
    # py4j reads which interface of Java a class implements from a class `Java` within it.
    assert [name for name, count in names.items() if count > 1 and name != "Java"] == []


# Each takes a tenth of a second or ten megabytes, and nobody needs it who only makes a source.
_HEAVY_FOR_SOURCES = set(HEAVY) - {"aiokafka", "numpy"} | {
    "botocore",
    "confluent_kafka",
    "pyarrow.dataset",
    "rich",
    "typer",
}
_HEAVY_FOR_HELP = _HEAVY_FOR_SOURCES - {"rich", "typer"} | {
    "pandas",
    "aiokafka",
    "asyncio",
    "importlib.metadata",
    "msgspec",
    "numpy",
    "pyarrow",
    "tenacity",
}
_HEAVY_FOR_ALL = _HEAVY_FOR_HELP | {"rich", "typer"}


_KINESIS_SOURCE = """
from fanout.kinesis import KinesisSource
KinesisSource(stream="orders", consumer="etl", start="TRIM_HORIZON").schema
"""
_KAFKA_SOURCE = """
from fanout.kafka import Cluster, KafkaSource, Security
cluster = Cluster("127.0.0.1:9092", security=Security(protocol="PLAINTEXT"))
KafkaSource(cluster=cluster, topics="orders").schema
"""


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import fanout", _HEAVY_FOR_ALL),
        ("from fanout.cli import main; sys.argv = ['fanout', '--help']; main()", _HEAVY_FOR_HELP),
        (_KINESIS_SOURCE, _HEAVY_FOR_SOURCES | {"aiohttp", "aiokafka"}),
        (_KAFKA_SOURCE, _HEAVY_FOR_SOURCES),
    ],
    ids=["import fanout", "fanout --help", "a KinesisSource", "a KafkaSource"],
)
def test_what_is_heavy_is_loaded_when_it_is_used(code: str, heavy: set[str]) -> None:
    told = (
        f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n{code}"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stderr.split())
    assert "fanout" in loaded
    assert sorted(loaded & heavy) == []


def test_reading_into_spark_loads_nothing_of_kafka() -> None:
    code = "import sys, fanout.spark; print([name for name in sys.modules if 'kafka' in name])"
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert answer.stdout.strip() == "[]"


def test_reading_from_kafka_loads_nothing_of_share_groups() -> None:
    code = (
        "import sys; from fanout.kafka import KafkaSource; print('confluent_kafka' in sys.modules)"
    )
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert answer.stdout.strip() == "False"


def test_share_groups_without_their_client_name_the_extra() -> None:
    code = "import sys; sys.modules['confluent_kafka'] = None; from fanout.kafka import {0}"
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code.format("KafkaShareSource")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert "pip install 'fanout-streams[kafka,share]'" in answer.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("package", "missing", "left_out"),
    [
        ("fanout.kafka", ["confluent_kafka"], {"KafkaShareSource"}),
        pytest.param(
            "fanout.testing",
            ["confluent_kafka"],
            {"KafkaBroker", "KafkaCluster"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "fanout.decoding",
            ["google", "google.protobuf"],
            {"Protobuf"},
            marks=pytest.mark.long,
        ),
        ("fanout", ["deltalake", "pyiceberg"], {"DeltaTable", "IcebergTable"}),
    ],
)
def test_a_star_import_leaves_out_what_needs_another_extra(
    package: str, missing: list[str], left_out: set[str]
) -> None:
    code = (
        f"import sys\nfor name in {missing}: sys.modules[name] = None\n"
        f"from {package} import *\nprint(*globals())"
    )
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert answer.returncode == 0, answer.stderr
    names = set(importlib.import_module(package).__all__)
    assert names & set(answer.stdout.split()) == names - left_out


@pytest.mark.parametrize("name", MODULES)
def test_the_names_that_an_editor_reads_are_all(name: str) -> None:
    module = importlib.import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    (written,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert sorted(module.__all__) == sorted(written)


def test_public_are_the_names_of_six_modules() -> None:
    declaring = {
        module_of(path)
        for path in FILES
        if any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for node in ast.parse(path.read_text()).body
        )
    }
    assert declaring == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_each_public_name_is_there_and_is_completed(name: str) -> None:
    module = importlib.import_module(name)
    assert isinstance(module.__all__, tuple)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []
    assert set(module.__all__) <= set(dir(module))
