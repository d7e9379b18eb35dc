"""The table of clients in docs/testing.md, and the calls that the embedded server sees."""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.support.pages import page

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

# It logs the operation, the protocol and the encoding of each call.
_LOGGER: Final = "fanout.testing.kinesis.moto_responses"

# By client: operation -> protocol and encoding.
Table = dict[str, dict[str, str]]


def table() -> Table:
    """Read the table: its rows are operations, its columns are clients."""
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", page("testing.md"), re.MULTILINE)
    ]
    (_, *clients), _, *operations = rows
    return {
        client: {name: cells[column] for name, *cells in operations if cells[column] != "-"}
        for column, client in enumerate(clients)
    }


@contextmanager
def calls(caplog: pytest.LogCaptureFixture) -> Iterator[set[str]]:
    """Collect the calls of a block, as `calls_of` returns them; the set is filled at its end."""
    caplog.clear()
    seen: set[str] = set()
    with caplog.at_level(logging.DEBUG, _LOGGER):
        yield seen
    seen.update(record.getMessage() for record in caplog.records if record.name == _LOGGER)


def calls_of(client: str) -> set[str]:
    """Return the calls that the table says a client makes: operation, protocol and encoding."""
    return {f"{operation}: {wire}" for operation, wire in table()[client].items()}
