"""Check the limit of open files: each shard takes a connection, and a connection is a file."""

from __future__ import annotations

import sys
from typing import Final

from fanout.errors import SetupError

if sys.platform != "win32":
    import resource

# For log and segment files, the connection to Spark, and the other calls.
_RESERVED: Final = 64


def check_open_files(shards: int) -> None:
    """Check that this process may open as many files as reading so many shards needs."""
    # Each subscription holds a connection, which is an open file. With a lower limit some shards
    # would fail to connect again and again, and lag more and more. The limit is not raised here: it
    # belongs to the process, and other libraries may depend on it (select() fails beyond 1,024).
    limit, needed = open_files_limit(), open_files_needed(shards)
    if limit is None or needed <= limit:
        return
    raise SetupError(
        f"{shards} open shards are read, each of which takes a connection, and this process "
        f"may open {limit} files, {_RESERVED} of them for everything else; raise its limit to "
        f"{needed} or more before it starts (`ulimit -n {needed}`, LimitNOFILE= of a systemd unit, "
        f"nofile of a container)"
    )


def open_files_needed(shards: int) -> int:
    """Return how many files a process opens to read this number of shards at once."""
    return shards + _RESERVED


def open_files_limit() -> int | None:
    """Return how many files this process may open; None for no limit."""
    if sys.platform == "win32":
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit
