from __future__ import annotations

from tests.public_interface import SNAPSHOT, interface


def test_public_names_and_signatures_are_the_ones_that_were_agreed() -> None:
    assert interface() == SNAPSHOT.read_text(encoding="utf-8"), (
        "the public interface changed: if that is wanted, run `python -m tests.public_interface` "
        "and write a line in CHANGELOG.md"
    )
