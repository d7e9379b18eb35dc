"""Adobe's S3Mock: a second opinion on what S3 does, in a JVM of its own.

S3Mock 5.0.0 honours `If-None-Match: *`, but it looks for the name first and writes then: of writers
at the same moment, several succeed. So no test lets two writers create one name at once there.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fanout.errors import SetupError
from fanout.spark.hadoop.session_checks import require_java
from fanout.testing.kafka.server_process import KeptServer
from fanout.testing.s3_clients import BUCKET, s3_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# It starts within 15 seconds on a busy machine; this passes only if a test fails.
_START_TIMEOUT: Final = 90.0
_SETTINGS: Final = (
    "--server.address=127.0.0.1",
    "--server.port=0",
    "--server.ssl.enabled=false",
    # A second port, which it opens in any case.
    "--http.port=0",
    "--com.adobe.testing.s3mock.store.root=objects",
)


@contextmanager
def serve_s3mock(jar: Path) -> Iterator[str]:
    """Serve S3 with an empty bucket, whose objects are in a directory that goes with the server.

    Args:
        jar: S3Mock's `exec` jar.

    Yields:
        The endpoint.

    Raises:
        SetupError: It does not start; the end of its log is in the message.
    """
    java = (str(require_java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    # Files of a request, and the server's own.
    temporary = "-Djava.io.tmpdir=."
    with KeptServer([*java, temporary, "-jar", str(jar), *_SETTINGS]) as server:
        (server.directory / "objects").mkdir()
        server.start()
        endpoint = f"http://127.0.0.1:{_port(server)}"
        s3_files(endpoint).create_dir(BUCKET)
        yield endpoint


def _port(server: KeptServer) -> int:
    """Wait until the server listens on a port of its choice."""
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        running = server.pid is not None and time.monotonic() < deadline
        log = "\n".join(server.log(30))
        # The first port is the one on 127.0.0.1 alone.
        if found := re.search(r"Tomcat started on ports (\d+) \(http\)", log):
            return int(found[1])
        if not running:
            raise SetupError(f"S3Mock does not start; its log ends with:\n{log}")
        time.sleep(0.05)
