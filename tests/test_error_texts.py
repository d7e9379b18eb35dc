"""No message ends in a colon with nothing behind it: some errors have no text of their own."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.core.error_text import text_of
from fanout.core.events import Split
from fanout.core.lineage import listing_failure
from fanout.core.policy import Fatal
from fanout.core.subscriber import split_failure
from fanout.kinesis.aws.error_hints import explain
from tests.support.syntax import statements

if TYPE_CHECKING:
    from collections.abc import Iterator

# Those of their subclasses that asyncio and the network raise have no text.
_BROAD = {"Exception", "BaseException", "OSError", "TimeoutError", "ConnectionError", "EOFError"}


def test_an_error_without_a_text_has_that_of_its_type_and_its_cause() -> None:
    assert text_of(ValueError("it is odd")) == "it is odd"
    assert text_of(TimeoutError()) == "TimeoutError"
    assert text_of(TimeoutError(" ")) == "TimeoutError"
    wrapped = OSError()
    wrapped.__cause__ = ConnectionResetError(104, "Connection reset by peer")
    assert text_of(wrapped) == "OSError after [Errno 104] Connection reset by peer"


def test_a_text_that_ends_in_a_colon_goes_on_with_the_cause() -> None:
    error = ValueError("An HTTP Client raised an unhandled exception: ")
    assert text_of(error) == "An HTTP Client raised an unhandled exception: ValueError"
    error.__cause__ = TimeoutError()
    assert text_of(error) == "An HTTP Client raised an unhandled exception: TimeoutError"


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError()], ids=repr)
def test_what_ends_a_stream_has_a_text(error: Exception) -> None:
    name = type(error).__name__
    assert str(listing_failure(error, Fatal())) == f"the splits cannot be listed: {name}"
    assert str(split_failure(Split("a"), error)) == f"a cannot go on: {name}"
    assert f"the endpoint does not answer ({name})" in str(explain(error, "it failed"))


def _formatted(handler: ast.ExceptHandler) -> Iterator[int]:
    """Yield the lines that format the error of a handler, or log it, as it is."""
    for node in ast.walk(handler):
        match node:
            case ast.FormattedValue(value=ast.Name(id=name)):
                names = [name]
            case ast.Call(
                func=ast.Name(id="str") | ast.Attribute(value=ast.Name(id="log")), args=args
            ):
                names = [each.id for each in args if isinstance(each, ast.Name)]
            case _:
                continue
        if handler.name in names:
            assert isinstance(node, ast.expr)
            yield node.lineno


def test_errors_of_unknown_types_are_formatted_by_text_of() -> None:
    found = []
    for path in sorted(Path(fanout.__file__).parent.rglob("*.py")):
        for handler in statements(ast.parse(path.read_text())):
            if isinstance(handler, ast.ExceptHandler) and handler.type is not None:
                caught = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
                if caught & _BROAD:
                    found += [f"{path.name}:{line}" for line in _formatted(handler)]
    assert found == [], "use fanout.core.error_text.text_of"
