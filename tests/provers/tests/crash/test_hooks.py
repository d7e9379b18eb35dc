"""The real functions are wrapped in processes of campaigns only; here the wrapping of any."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.provers.crash import hooks
from tests.provers.crash.moments import CrashMoment
from tests.provers.crash.watched_files import FILE_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

BOTH = (CrashMoment.BEFORE_END, CrashMoment.AFTER_END)


class Owner:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def store(self, name: str, data: bytes = b"") -> int:
        if data == b"bad":
            raise OSError
        self.calls.append(name)
        return len(data)

    async def end(self, token: object) -> object:
        self.calls.append(token)
        return token


@pytest.fixture
def owner() -> type[Owner]:
    """A class of its own for each test, as wrapping changes it."""
    return type("Wrapped", (Owner,), {})


@pytest.fixture
def reached() -> list[CrashMoment]:
    return []


@pytest.fixture
def reach(reached: list[CrashMoment]) -> Callable[[CrashMoment | None], None]:
    return lambda moment: reached.append(moment) if moment is not None else None


def test_a_call_has_a_moment_before_and_one_after(
    owner: type[Owner], reached: list[CrashMoment], reach: Callable[[CrashMoment | None], None]
) -> None:
    hooks._wrap(owner, "store", reach, BOTH)
    made = owner()
    assert made.store("a", data=b"123") == 3
    assert (made.calls, reached) == (["a"], [*BOTH])


async def test_so_has_a_coroutine_function(
    owner: type[Owner], reached: list[CrashMoment], reach: Callable[[CrashMoment | None], None]
) -> None:
    hooks._wrap(owner, "end", reach, BOTH)
    made = owner()
    waiting = made.end("token")
    assert reached == []
    assert await waiting == "token"
    assert (made.calls, reached) == (["token"], [*BOTH])


def test_a_call_that_raises_never_comes_to_the_moment_after(
    owner: type[Owner], reached: list[CrashMoment], reach: Callable[[CrashMoment | None], None]
) -> None:
    hooks._wrap(owner, "store", reach, BOTH)
    with pytest.raises(OSError):  # noqa: PT011 - it says nothing
        owner().store("a", b"bad")
    assert reached == [CrashMoment.BEFORE_END]


def test_only_calls_about_a_directory_count_where_one_is_named(
    owner: type[Owner], reached: list[CrashMoment], reach: Callable[[CrashMoment | None], None]
) -> None:
    hooks._wrap(owner, "store", reach, BOTH, hooks._names_a_file_in("batches"))
    made = owner()
    made.store("segments/1")
    made.store("batches")
    assert reached == []
    made.store("batches/1")
    assert reached == [*BOTH]


_NAMES = """
import json, sys
from pathlib import Path
from tests.provers.crash import hooks
from tests.provers.crash.control import Control

wrapped = []
hooks._wrap = lambda owner, name, reach, moments, concerned=None: wrapped.append(
    [f"{owner.__name__}.{name}", callable(getattr(owner, name)), [m for m in moments if m]]
)
for install in sys.argv[1:]:
    getattr(hooks, install)(Control(Path()))
print(json.dumps(wrapped))
"""


def wrapped_by(*installs: str) -> list[tuple[str, bool, list[str]]]:
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", _NAMES, *installs], capture_output=True, text=True, check=True
    )
    return [(name, there, moments) for name, there, moments in json.loads(answer.stdout)]


def test_every_step_of_a_batch_is_wrapped_in_the_process_that_takes_it() -> None:
    wrapped = wrapped_by("install_in_driver", "install_in_worker")
    assert all(there for _, there, _ in wrapped)
    moments = {moment for _, _, moments in wrapped for moment in moments}
    # Those of PostgreSQL's transactions are in no method of the sink, and come as the JVM's do.
    of_files = {moment for step in FILE_STEPS for moment in (step.before, step.after)}
    assert moments | of_files == set(CrashMoment) - {CrashMoment.RANDOM}
