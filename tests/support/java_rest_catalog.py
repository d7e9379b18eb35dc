"""Iceberg's REST catalog of Java: a second opinion on what a catalog does, in a JVM of its own."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fanout.errors import SetupError
from fanout.spark.hadoop.session_checks import require_java
from fanout.testing.kafka.server_process import KeptServer
from tests.jars.fetch import jar_set

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVER: Final = Path(__file__).with_name("IcebergRestServer.java")
# It compiles and starts within 15 seconds on a busy machine; this passes only if a test fails.
_START_TIMEOUT: Final = 90.0


@contextmanager
def java_rest_catalog(warehouse: str) -> Iterator[str]:
    """Serve an empty catalog, which is gone with the server.

    Args:
        warehouse: Where its tables are.

    Yields:
        The URI.

    Raises:
        SetupError: It does not start; the end of its log is in the message.
    """
    jars = ":".join(map(str, jar_set("iceberg-rest")))
    java = (str(require_java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    with KeptServer([*java, "-cp", jars, str(_SERVER), warehouse]) as server:
        server.start()
        deadline = time.monotonic() + _START_TIMEOUT
        while not (found := re.search(r"listens on port (\d+)", "\n".join(server.log(30)))):
            if server.pid is None or time.monotonic() > deadline:
                log = "\n".join(server.log(30))
                raise SetupError(f"the catalog does not start; its log ends with:\n{log}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{found[1]}"
