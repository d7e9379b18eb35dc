"""Commands of `fanout` as processes, with an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ("ENVIRONMENT", "FANOUT", "fanout")

FANOUT = [sys.executable, "-c", "from fanout.cli import main; main()"]
# No AWS or Kafka of the machine that runs the tests.
ENVIRONMENT = {
    **{
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "KAFKA_"))
    },
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "TERM": "dumb",
    "COLUMNS": "200",
}


def fanout(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `fanout` to its end."""
    return subprocess.run(  # noqa: S603 - our own code
        [*FANOUT, *arguments],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=False,
    )
