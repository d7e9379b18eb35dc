"""What Spark's file source reads from the log of a landing, by the rules of its code.

tests/spark/test_landed_files.py shows that Spark itself agrees.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanout.landing.storage.storage import StoredFiles

LOG = "segments/_spark_metadata"


def read_log(files: StoredFiles, *, default_interval: int = 10) -> list[dict[str, Any]]:
    """Return the lines that a reader finds, in order.

    Args:
        files: The landing.
        default_interval: The reader's setting spark.sql.streaming.fileSink.log.compactInterval.

    Raises:
        LookupError: A file is missing that the reader insists on.
        ValueError: A file is damaged.
    """
    names = {file.name for file in files.list(LOG)}
    numbers = [int(name.removesuffix(".compact")) for name in names]
    if not numbers:
        return []
    compacts = sorted(int(n.removesuffix(".compact")) for n in names if n.endswith(".compact"))
    interval = default_interval
    if len(compacts) >= 2:
        interval = compacts[-1] - compacts[-2]
    elif compacts:
        interval = _derived(default_interval, compacts[0] + 1)
    newest = max(numbers)
    first = max(0, (newest + 1) // interval * interval - 1)
    found = []
    for number in range(first, newest + 1):
        name = f"{number}.compact" if (number + 1) % interval == 0 else str(number)
        data = files.read(f"{LOG}/{name}", limit=1 << 30)
        if data is None:
            raise LookupError(f"{name} doesn't exist (latestId: {newest}, interval: {interval})")
        version, *lines = data.decode().splitlines()
        if version != "v1":
            raise ValueError(version)
        found += [json.loads(line) for line in lines]
    return found


def _derived(default: int, files: int) -> int:
    if files <= default or default >= files // 2:
        return files
    return next((one for one in range(default, files // 2 + 1) if files % one == 0), files)
