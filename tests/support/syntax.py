"""The statements of a module in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator


def statements(parent: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements within a node, but no expressions, of which there are far more."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(parent, block, ()):
            yield statement
            yield from statements(statement)
