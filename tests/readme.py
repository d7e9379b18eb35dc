"""The README's examples, as code that a test can run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = (
    "ASYNCIO",
    "BROKER",
    "COMMANDS",
    "DECODE",
    "DIAGNOSE",
    "FIRST_RECORD",
    "IAM",
    "KAFKA_ASYNCIO",
    "KAFKA_SINK",
    "KAFKA_SPARK",
    "POLLING",
    "README",
    "RESUME",
    "SPARK",
    "STOP_ASYNCIO",
    "STOP_SPARK",
    "TESTING",
    "defined_by",
    "on_this_machine",
)

README = (Path(__file__).parent.parent / "README.md").read_text()
(
    FIRST_RECORD,
    SPARK,
    ASYNCIO,
    KAFKA_SPARK,
    KAFKA_ASYNCIO,
    KAFKA_SINK,
    STOP_SPARK,
    STOP_ASYNCIO,
    RESUME,
    DECODE,
    POLLING,
    TESTING,
    BROKER,
) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
IAM, DIAGNOSE = (
    re.sub(r"^>>> ", "", code, flags=re.MULTILINE)
    for code in re.findall(r"```pycon\n(.*?)```", README, re.DOTALL)
)
# Servers run until they are told to end; tests/cli/test_servers.py starts them.
COMMANDS = re.findall(r"^\$ (fanout (?!kinesis-server).*)$", README, re.MULTILINE)


def defined_by(code: str) -> dict[str, Any]:
    """Run an example without its last line, which would block; return what it defines."""
    names: dict[str, Any] = {}
    lines = code.rstrip().splitlines()
    assert lines[-1] in {"asyncio.run(main())", "query.await_termination()"}
    exec("\n".join(lines[:-1]), names)  # noqa: S102 - the README is ours
    return names


def on_this_machine(code: str, bootstrap_servers: str) -> str:
    """Let an example that reads from Kafka do so from a broker without passwords."""
    assert code.count("broker-1:9093,broker-2:9093") == 1
    local, secured = re.subn(r"Security\(username=.*\),", 'Security(protocol="PLAINTEXT"),', code)
    assert secured == 1
    return local.replace("broker-1:9093,broker-2:9093", bootstrap_servers)
