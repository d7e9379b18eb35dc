"""The README and the pages of docs, and their examples as code that a test can run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

__all__ = (
    "DOCS",
    "PAGES",
    "ROOT",
    "commands",
    "defined_by",
    "on_this_machine",
    "page",
    "python_blocks",
    "session_block",
)

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = (
    ROOT / "README.md",
    # `make site` writes the page of the command line, which is not in git.
    *sorted(path for path in DOCS.rglob("*.md") if path != DOCS / "cli.md"),
)


def page(name: str) -> str:
    """Return the text of a page of docs, or of the README."""
    return ((ROOT if name == "README.md" else DOCS) / name).read_text(encoding="utf-8")


def python_blocks(name: str) -> list[str]:
    """Return the Python examples of a page, in their order."""
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def session_block(name: str) -> str:
    """Return the only example of a page that is a session of Python, without the prompts."""
    (code,) = re.findall(r"```pycon\n(.*?)```", page(name), re.DOTALL)
    return re.sub(r"^>>> ", "", code, flags=re.MULTILINE)


def commands(name: str) -> list[str]:
    """Return the commands of fanout in a page that end by themselves.

    Servers run until they are told to end; tests/cli/test_servers.py starts them.
    """
    ends = r"^\$ (fanout (?!kinesis-server|kafka-broker).*)$"
    return re.findall(ends, page(name), re.MULTILINE)


def defined_by(code: str) -> dict[str, Any]:
    """Run an example without its last line, which would block; return what it defines."""
    names: dict[str, Any] = {}
    lines = code.rstrip().splitlines()
    assert lines[-1] in {"asyncio.run(main())", "query.await_termination()"}
    exec("\n".join(lines[:-1]), names)  # noqa: S102 - the pages are ours
    return names


def on_this_machine(code: str, bootstrap_servers: str) -> str:
    """Let an example that reads from Kafka do so from a broker without passwords."""
    assert code.count("broker-1:9093,broker-2:9093") == 1
    local, secured = re.subn(r"Security\(username=.*\),", 'Security(protocol="PLAINTEXT"),', code)
    assert secured == 1
    return local.replace("broker-1:9093,broker-2:9093", bootstrap_servers)
