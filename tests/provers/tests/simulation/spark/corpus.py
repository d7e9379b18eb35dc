"""Lives that have shown a mistake of the library when it still had it."""

from __future__ import annotations

import errno

from tests.provers.simulation.spark import (
    DiskRefusal,
    DriverKill,
    DriverRun,
    FileDamage,
    PowerLoss,
    QueryPlan,
)

FOUND = {
    "a directory that an earlier run has made is not durable": QueryPlan(
        seed=8,
        records=3,
        runs=(DriverRun(faults=(DriverKill(4),)), DriverRun(faults=(PowerLoss(38),))),
    ),
    "an entry whose fsync has failed is replayed": QueryPlan(
        seed=114,
        records=3,
        seconds=1.0,
        runs=(DriverRun(faults=(DiskRefusal(78, errno.EIO),)), DriverRun(stop_after=2.0)),
    ),
    "a disk that refuses everything refuses to clean up": QueryPlan(
        seed=58, remote=True, runs=(DriverRun(faults=(DiskRefusal(25, errno.EIO, times=1000),)),)
    ),
    "an older driver that stops lets Spark take the newer one's batch for done": QueryPlan(
        seed=440,
        remote=True,
        records=3,
        max_records=1,
        runs=(DriverRun(overlap=2.6), DriverRun(stop_after=70.0)),
    ),
    "entries that have gone are not missed": QueryPlan(
        seed=2,
        records=3,
        seconds=1.0,
        max_records=100,
        runs=(DriverRun(faults=(DriverKill(58),)), DriverRun(damage=FileDamage("batches", None))),
    ),
}
