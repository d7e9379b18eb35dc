"""Kill `fanout land` at its steps, on each storage, and count the records of its tables."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, final

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from fanout.testing.s3_clients import BUCKET
from fanout.testing.s3_server import serve_s3
from tests.jars.fetch import jar_set
from tests.landing.projections.tables import Delta, Iceberg, iceberg_catalog
from tests.landing.s3mock import serve_s3mock
from tests.landing.test_killed_lander import STORAGES, Lander
from tests.provers.tables.forked import run_forked
from tests.support.commands import ENVIRONMENT
from tests.support.doomed import Kill
from tests.support.java_rest_catalog import java_rest_catalog
from tests.support.rest_catalog import rest_catalog
from tests.support.s3 import s3_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.landing.projections.tables import Kind

__all__ = ("PLACES", "TablesReport", "run_tables_campaign")

PLACES: Final = ("disk", "moto", "s3mock")
_PROJECTIONS: Final = "fanout.landing.projections"
_STEPS: Final = {
    "delta": (
        f"{_PROJECTIONS}.delta:_Delta.newest",
        f"{_PROJECTIONS}.delta:_Delta.add",
        "deltalake.table:DeltaTable.create_write_transaction",
    ),
    "iceberg, SQLite": (
        f"{_PROJECTIONS}.iceberg:_Iceberg.newest",
        f"{_PROJECTIONS}.iceberg:_Iceberg.add",
        "pyiceberg.catalog.sql:SqlCatalog.commit_table",
    ),
    "iceberg, REST": (
        f"{_PROJECTIONS}.iceberg:_Iceberg.newest",
        f"{_PROJECTIONS}.iceberg:_Iceberg.add",
        "pyiceberg.catalog.rest:RestCatalog.commit_table",
    ),
}
_OPTIONS: Final = {
    "delta": "delta",
    "iceberg, SQLite": "iceberg:lab/db.orders",
    "iceberg, REST": "iceberg:far/db.orders",
}
_NEVER: Final = Kill(f"{_PROJECTIONS}.delta:_Delta.add", "before", 10_000)


@final
@dataclass(slots=True)
class TablesReport:
    """What a campaign has found.

    Args:
        seconds: How long it took.
        kills: How often a process was killed at each place and step.
        records: How many records were put.
        lost: How many of them the landings and the tables lack, by what lacks them.
        repeated: How many of them these have more than once.
    """

    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether nothing was lost or repeated."""
        return not any((*self.lost.values(), *self.repeated.values()))

    def count(self, what: str, found: Counter[int], records: int) -> None:
        """Compare what a landing or a table has with what was put."""
        self.lost[what] = len(set(range(records)) - found.keys())
        self.repeated[what] = sum(count - 1 for count in found.values())

    def to_json(self) -> str:
        """Write the report on one line."""
        return json.dumps(
            {
                "seconds": round(self.seconds),
                "kills": self.kills.total(),
                "at": dict(sorted(self.kills.items())),
                "records": self.records,
                "lost": self.lost,
                "repeated": self.repeated,
                "holds": self.holds,
            }
        )


def run_tables_campaign(kills: int, seed: int, note: Callable[[str], None]) -> TablesReport:
    """Run a campaign.

    Args:
        kills: How often processes are killed, at all places together.
        seed: What the steps are drawn from.
        note: Receives a line for each kill.
    """
    report, begun = TablesReport(), time.monotonic()
    with KinesisServer(KinesisRules.fast()) as kinesis:
        for number, place in enumerate(PLACES):
            part = (kills + len(PLACES) - 1 - number) // len(PLACES)
            with ExitStack() as stack:
                lab = _Place(place, kinesis, stack)
                lab.strike(part, Random(f"{seed} {place}"), report, note)
    report.seconds = time.monotonic() - begun
    return report


@final
class _Place:
    """A landing with three tables."""

    def __init__(self, name: str, kinesis: KinesisServer, stack: ExitStack) -> None:
        self._name = name
        directory = Path(stack.enter_context(TemporaryDirectory()))
        endpoint = None
        if name == "moto":
            endpoint = stack.enter_context(serve_s3())
        elif name == "s3mock":
            (jar,) = jar_set("s3mock")
            endpoint = stack.enter_context(serve_s3mock(jar))
        location = (
            str(directory / "to") if endpoint is None else f"s3://{BUCKET}/{uuid.uuid4().hex}"
        )
        options = None if endpoint is None else s3_options(endpoint)
        io = {} if options is None else {f"s3.{k.replace('_', '-')}": options[k] for k in options}
        catalogs: dict[str, dict[str, str]] = {}
        for catalog in ("lab", "far"):
            (directory / catalog).mkdir()
            more = {} if endpoint is None else {"warehouse": f"{location}-{catalog}"}
            catalogs[catalog] = iceberg_catalog(directory / catalog, **more)
        if endpoint is None:
            uri = stack.enter_context(java_rest_catalog((directory / "far").as_uri()))
        else:
            uri = stack.enter_context(rest_catalog(catalogs["far"] | io)).uri
        catalogs["far"] = {"type": "rest", "uri": uri}
        self._kinds: Mapping[str, Kind] = {
            "delta": Delta(location, options),
            "iceberg, SQLite": Iceberg(catalogs["lab"], io),
            "iceberg, REST": Iceberg(catalogs["far"], io),
        }
        self._lander = Lander(kinesis, location, endpoint, run=run_forked)
        for catalog, properties in catalogs.items():
            for key, value in properties.items():
                variable = f"PYICEBERG_CATALOG__{catalog.upper()}__{key.upper()}"
                ENVIRONMENT[variable] = value
                stack.callback(ENVIRONMENT.pop, variable)
        self._storage = STORAGES["disk" if endpoint is None else "s3"]

    def strike(
        self, kills: int, random: Random, report: TablesReport, note: Callable[[str], None]
    ) -> None:
        """Kill processes, let the last one end, and count."""
        struck = 0
        while struck < kills:
            self._lander.put()
            table = random.choice([*_STEPS])
            steps = (*_STEPS[table], f"{self._storage}.create", f"{self._storage}.publish")
            kill = Kill(
                random.choice(steps), random.choice(["before", "after"]), random.randint(1, 4)
            )
            if self._lander.is_killed(kill, "--table", _OPTIONS[table]):
                struck += 1
                step = f"{kill.when} {kill.where.partition(':')[2]}"
                report.kills[f"{self._name}, {table}: {step}"] += 1
                note(f"{self._name}: {table}: killed {step}, call {kill.call}")
                self._lander.check()
        self._lander.is_killed(_NEVER, *(f"--table={option}" for option in _OPTIONS.values()))
        report.records += self._lander.records
        report.count(f"{self._name}: landing", self._lander.landed(), self._lander.records)
        for name, kind in self._kinds.items():
            found = Counter(int(data) for data in kind.read().column("data").to_pylist())
            report.count(f"{self._name}: {name}", found, self._lander.records)
