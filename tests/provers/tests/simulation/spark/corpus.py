"""Lives that have shown a mistake of the library when it still had it."""

from __future__ import annotations

import errno

from tests.provers.simulation.spark import Damage, Kill, Plan, PowerLoss, Refuse, Run

FOUND = {
    "a directory that an earlier run has made is not durable": Plan(
        seed=8, records=3, runs=(Run(faults=(Kill(4),)), Run(faults=(PowerLoss(38),)))
    ),
    "an entry whose fsync has failed is replayed": Plan(
        seed=114,
        records=3,
        seconds=1.0,
        runs=(Run(faults=(Refuse(78, errno.EIO),)), Run(stop_after=2.0)),
    ),
    "a disk that refuses everything refuses to clean up": Plan(
        seed=58, remote=True, runs=(Run(faults=(Refuse(25, errno.EIO, times=1000),)),)
    ),
    "an older driver that stops lets Spark take the newer one's batch for done": Plan(
        seed=440,
        remote=True,
        records=3,
        max_records=1,
        runs=(Run(overlap=2.6), Run(stop_after=70.0)),
    ),
    "entries that have gone are not missed": Plan(
        seed=2,
        records=3,
        seconds=1.0,
        max_records=100,
        runs=(Run(faults=(Kill(58),)), Run(damage=Damage("batches", None))),
    ),
}
