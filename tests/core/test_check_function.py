from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from fanout.core.user_functions import UnfinishedError, call, check_function
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def plain(rows: object, number: int) -> None:
    del rows, number


async def coroutine(rows: object, number: int) -> None:
    del rows, number


def generator(rows: object, number: int) -> Iterator[int]:
    del rows
    yield number


async def async_generator(rows: object, number: int) -> AsyncIterator[int]:
    del rows
    yield number


class Methods:
    def plain(self, rows: object, number: int) -> None: ...

    async def coroutine(self, rows: object, number: int) -> None: ...

    def generator(self, rows: object, number: int) -> Iterator[int]:
        del rows
        yield number

    @classmethod
    async def of_class(cls, rows: object, number: int) -> None: ...

    @staticmethod
    async def static(rows: object, number: int) -> None: ...


class Plain:
    def __call__(self, rows: object, number: int) -> None: ...


class Coroutine:
    async def __call__(self, rows: object, number: int) -> None: ...


class Generator:
    def __call__(self, rows: object, number: int) -> Iterator[int]:
        del rows
        yield number


def with_more(function: Callable[..., object]) -> Callable[[object, int], object]:
    @functools.wraps(function)
    def wrapper(rows: object, number: int) -> object:
        return function(rows, number, "more")

    return wrapper


def three(rows: object, number: int, more: str) -> None:
    del rows, number, more


def run_to_its_end(function: Callable[..., Any]) -> Callable[[object, int], None]:
    @functools.wraps(function)
    def wrapper(rows: object, number: int) -> None:
        asyncio.run(function(rows, number))

    return wrapper


def check(function: object) -> None:
    check_function("handler", function, "a function of rows and a number", arguments=2)


@pytest.mark.parametrize(
    "function",
    [
        plain,
        Methods().plain,
        Plain(),
        functools.partial(three, more="x"),
        functools.partial(Plain()),
        lambda *_: None,
        lambda rows, number=0: (rows, number),
        with_more(three),
        run_to_its_end(coroutine),
        min,
    ],
)
def test_a_function_that_works_when_it_is_called_is_taken(function: object) -> None:
    check(function)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (coroutine, "an async function"),
        (generator, "a generator"),
        (async_generator, "an async generator"),
        (Methods().coroutine, "an async function"),
        (Methods().generator, "a generator"),
        (Methods.of_class, "an async function"),
        (Methods.static, "an async function"),
        (Coroutine(), "an async function"),
        (Generator(), "a generator"),
        (functools.partial(coroutine, None), "an async function"),
        (functools.partial(functools.partial(generator), None), "a generator"),
        (functools.partial(Coroutine(), None), "an async function"),
        (AsyncMock(), "an async function"),
    ],
)
def test_a_function_that_would_never_run_is_refused(function: object, kind: str) -> None:
    with pytest.raises(OptionError, match=f"^handler must be a function .*, and is {kind}.*plain"):
        check(function)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (None, "handler=None must be a function of rows and a number"),
        ("print", "handler='print' must be a function of rows and a number"),
        (Plain, "is the class Plain: pass an instance of it"),
        (lambda rows: rows, "cannot be called so: too many positional arguments"),
        (three, "cannot be called so: missing a required argument: 'more'"),
    ],
)
def test_what_cannot_be_called_so_is_refused(function: object, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        check(function)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (coroutine, "a coroutine"),
        (generator, "an object of the type generator"),
        (async_generator, "an object of the type async_generator"),
        (lambda rows, number: map(rows, [number]), "an object of the type map"),
        (lambda *_: concurrent.futures.Future(), "an object of the type Future"),
    ],
)
def test_work_that_is_not_done_is_an_error(function: Callable[..., object], kind: str) -> None:
    with pytest.raises(UnfinishedError, match=f"^returned {kind}, whose work is not done"):
        call(function, None, 1)


@pytest.mark.parametrize("result", [None, 7, "text", [1], {"rows": 1}, range(3), object()])
def test_any_other_result_is_not_used(result: object) -> None:
    call(lambda: result)
