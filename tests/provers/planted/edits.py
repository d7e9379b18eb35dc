"""Change the syntax tree of a function of the library, and run it so for a while.

A node is found by its structure, and by functions, classes and members that are given as objects:
a rename of them is a rename here. A change that does not find exactly one node raises PlantError.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from enum import Enum

__all__ = (
    "ANY",
    "Change",
    "Edit",
    "PlantError",
    "Step",
    "arguments",
    "before",
    "call",
    "called",
    "case_of",
    "constant",
    "drop",
    "field_of",
    "has",
    "member",
    "node",
    "on",
    "statement",
    "with_body",
    "with_test",
    "with_value",
)

Pattern: TypeAlias = Any
"""A pattern for a node: a function of it, a type, a list of patterns, or a value."""


class PlantError(Exception):
    """A change does not fit the function that it is made to: it finds no node, or several."""


ANY: Final = object()
"""Matches everything."""


def _fits(value: Any, pattern: Pattern) -> bool:
    if pattern is ANY:
        return True
    if isinstance(pattern, type):
        return isinstance(value, pattern)
    if callable(pattern):
        return bool(pattern(value))
    if isinstance(pattern, list):
        return (
            isinstance(value, list)
            and len(value) == len(pattern)
            and all(map(_fits, value, pattern))
        )
    return bool(value == pattern and type(value) is type(pattern))


def node(kind: type[ast.AST], **parts: Pattern) -> Callable[[Any], bool]:
    """Match a node by its kind and by some of its fields.

    Args:
        kind: The kind.
        **parts: What the fields of these names are compared with.
    """

    def fits(value: Any) -> bool:
        return isinstance(value, kind) and all(
            _fits(getattr(value, name), pattern) for name, pattern in parts.items()
        )

    return fits


def called(function: Any, **parts: Pattern) -> Callable[[Any], bool]:
    """Match a call of a function, method or class, by the name that it has now.

    Args:
        function: The function.
        **parts: What other fields of the call are compared with.
    """
    name = function.__name__
    own = node(ast.Call, **parts)

    def fits(value: Any) -> bool:
        return own(value) and name in {
            getattr(value.func, "id", None),
            getattr(value.func, "attr", None),
        }

    return fits


def has(pattern: Pattern) -> Callable[[Any], bool]:
    """Match a node that is, or somewhere below has, a node that a pattern matches."""
    return lambda value: any(_fits(each, pattern) for each in ast.walk(value))


def member(value: Enum) -> Callable[[Any], bool]:
    """Match a member of an enumeration."""
    return node(ast.Attribute, attr=value.name)


def field_of(owner: type, name: str) -> str:
    """Return the name of a field of a dataclass.

    Raises:
        PlantError: If the class has no such field.
    """
    if name not in {each.name for each in fields(owner)}:
        raise PlantError(f"{owner.__qualname__} has no field {name}")
    return name


def case_of(kind: type) -> Callable[[Any], bool]:
    """Match the case of a match statement that is for the instances of a class."""
    cls = node(ast.Name, id=kind.__name__)
    return node(ast.match_case, pattern=node(ast.MatchClass, cls=cls))


def statement(function: Any) -> Callable[[Any], bool]:
    """Match the statement that calls a function, alone or awaited."""
    return node(ast.Expr, value=has(called(function)))


def constant(value: object) -> Callable[[Any], ast.expr]:
    """Put a constant in place of an expression."""
    return lambda _: ast.Constant(value)  # type: ignore[arg-type]


def drop(_: Any) -> ast.stmt:
    """Leave a statement out."""
    return ast.Pass()


def before(added: ast.expr) -> Callable[[Any], list[ast.stmt]]:
    """Put an expression before a statement."""
    return lambda kept: [ast.Expr(added), kept]


def arguments(*values: object) -> Callable[[Any], ast.Call]:
    """Put constants in place of the arguments of a call."""

    def changed(made: ast.Call) -> ast.Call:
        made.args = [ast.Constant(each) for each in values]  # type: ignore[arg-type]
        return made

    return changed


def with_test(becomes: Callable[[Any], ast.expr]) -> Callable[[Any], Any]:
    """Change the test of an if or while."""
    return _changing("test", becomes)


def with_value(becomes: Callable[[Any], ast.expr]) -> Callable[[Any], Any]:
    """Change what is assigned, returned, or passed by a keyword."""
    return _changing("value", becomes)


def with_body(becomes: Callable[[list[ast.stmt]], list[ast.stmt]]) -> Callable[[Any], Any]:
    """Change the statements of a block."""
    return _changing("body", becomes)


def _changing(name: str, becomes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(whole: Any) -> Any:
        setattr(whole, name, becomes(getattr(whole, name)))
        return whole

    return changed


class _Planted(ast.Name):
    """The name of a function of the tests within a function of the library."""

    function: Any


def call(function: Callable[..., Any], *arguments: Any) -> ast.Call:
    """Call a function of the tests from the function that is changed.

    Args:
        function: The function.
        *arguments: Its arguments: nodes, or names such as `self`.
    """
    name = _Planted(f"_planted_{function.__name__}", ast.Load())
    name.function = function
    nodes = [
        ast.Name(each, ast.Load()) if isinstance(each, str) else _loaded(each) for each in arguments
    ]
    return ast.Call(name, nodes, [])


def _loaded(expression: ast.expr) -> ast.expr:
    """Return a copy of an expression that reads what the original may write."""
    loaded = copy.deepcopy(expression)
    if isinstance(loaded, ast.Name | ast.Attribute):
        loaded.ctx = ast.Load()
    return loaded


@final
@dataclass(frozen=True)
class Step:
    """Put something else in place of one node.

    Args:
        pattern: What the node is like; exactly one in the function is.
        becomes: Returns what stands in its place; it may change the node.
    """

    pattern: Pattern
    becomes: Callable[[Any], Any]

    def take(self, tree: ast.AST) -> None:
        """Change a function.

        Raises:
            PlantError: If there is not exactly one such node.
        """
        found = [each for each in ast.walk(tree) if _fits(each, self.pattern)]
        if len(found) != 1:
            raise PlantError(f"{len(found)} nodes fit, not one")
        _Replacement(found[0], self.becomes(found[0])).visit(tree)


class _Replacement(ast.NodeTransformer):
    def __init__(self, was: ast.AST, becomes: Any) -> None:
        self._was = was
        self._becomes = becomes

    def visit(self, node: ast.AST) -> Any:
        return self._becomes if node is self._was else self.generic_visit(node)


def on(pattern: Pattern, becomes: Callable[[Any], Any]) -> Step:
    """Put something else in place of the one node that fits; see `Step`."""
    return Step(pattern, becomes)


@final
@dataclass(frozen=True)
class Edit:
    """A change of one function.

    Args:
        function: The function, however it is decorated, or a property.
        step: What is changed in it.
    """

    function: Any
    step: Step

    @contextmanager
    def made(self) -> Iterator[None]:
        """Change the function within the block, for all that have it.

        Raises:
            PlantError: If the change does not fit the function.
        """
        function = self._function
        code, planted = self._changed()
        before = function.__code__
        function.__globals__.update(planted)
        function.__code__ = code
        try:
            yield
        finally:
            function.__code__ = before
            for name in planted:
                del function.__globals__[name]

    def check(self) -> None:
        """Check that the change fits the function.

        Raises:
            PlantError: If it does not.
        """
        self._changed()

    @property
    def _function(self) -> Any:
        function: Any = self.function
        if isinstance(function, property):
            function = function.fget
        return inspect.unwrap(function)

    def _changed(self) -> tuple[CodeType, dict[str, Any]]:
        function = self._function
        module = ast.parse(textwrap.dedent(inspect.getsource(function)))
        definition = module.body[0]
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        definition.decorator_list = []
        try:
            self.step.take(definition)
        except (AttributeError, IndexError, PlantError) as error:
            raise PlantError(f"{function.__qualname__} is not as expected: {error}") from error
        planted = {
            each.id: each.function for each in ast.walk(definition) if isinstance(each, _Planted)
        }
        compiled = compile(
            ast.fix_missing_locations(module),
            f"<{function.__qualname__}, changed>",
            "exec",
            flags=__future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        code = next(
            code
            for code in compiled.co_consts
            if isinstance(code, CodeType) and code.co_name == function.__name__
        )
        return code, planted


Change: TypeAlias = tuple[Edit, ...]
