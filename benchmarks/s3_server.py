"""An S3 in a process of its own: moto's, with an empty bucket.

`python -m benchmarks.s3_server` prints its endpoint, and ends when its standard input is closed.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from fanout.testing.s3_server import serve_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("STORAGE_OPTIONS", "main", "s3_server")

STORAGE_OPTIONS: Final = {
    "access_key_id": "benchmark",
    "secret_access_key": "benchmark",
    "region": "us-east-1",
}


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server in a process of its own while the block runs; yield its endpoint."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.s3_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def main() -> None:
    """Serve until standard input is closed."""
    with serve_s3() as endpoint, suppress(KeyboardInterrupt):
        print(endpoint, flush=True)  # noqa: T201 - the caller reads it
        sys.stdin.read()


if __name__ == "__main__":
    main()
