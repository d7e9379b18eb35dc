"""Whether this process may open a connection for each shard."""

from __future__ import annotations

import sys
from typing import Final

from fanout.errors import SetupError

if sys.platform != "win32":
    import resource

__all__ = ("check_open_files", "open_files_limit", "open_files_needed")

# Log and segment files, the connection to Spark, the calls that are no subscription.
_KEPT: Final = 64


def check_open_files(shards: int) -> None:
    """Check that this process may open as many files as a stream with so many shards needs.

    Each subscription holds a connection, and a connection is an open file. Without room for all of
    them some shards would fail to connect again and again, and lag behind without end. The limit
    is not raised here: it belongs to the process, whose other libraries may count on it (select()
    fails beyond 1,024).

    Args:
        shards: The shards that are read at once.

    Raises:
        SetupError: If the limit is too low; it says to what to raise it.
    """
    limit, needed = open_files_limit(), open_files_needed(shards)
    if limit is None or needed <= limit:
        return
    raise SetupError(
        f"the stream has {shards} open shards, each of which takes a connection, and this process "
        f"may open {limit} files, {_KEPT} of them for everything else; raise its limit to "
        f"{needed} or more before it starts (`ulimit -n {needed}`, LimitNOFILE= of a systemd unit, "
        f"nofile of a container)"
    )


def open_files_needed(shards: int) -> int:
    """Return how many files a process opens that reads so many shards at once."""
    return shards + _KEPT


def open_files_limit() -> int | None:
    """Return how many files this process may open; None for any number."""
    if sys.platform == "win32":
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit
