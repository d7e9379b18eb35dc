from __future__ import annotations

import pytest

from fanout.core.remote_error import ErrorWire, ForeignError
from fanout.errors import (
    CheckpointError,
    FanOutError,
    RemoteError,
    ServiceError,
    SetupError,
    UnconfirmedEndError,
)


def sent(error: Exception) -> FanOutError:
    """Return an error as another process has it."""
    return ErrorWire.from_json(ErrorWire.with_cause(error).to_json()).error()


@pytest.mark.parametrize("kind", [CheckpointError, ServiceError, SetupError, UnconfirmedEndError])
def test_an_error_of_the_library_arrives_as_it_was(kind: type[FanOutError]) -> None:
    arrived = sent(kind("as it is"))
    assert (type(arrived), str(arrived), arrived.__cause__) == (kind, "as it is", None)


def test_the_code_of_a_service_arrives() -> None:
    arrived = sent(RemoteError("InternalFailure", "later: perhaps"))
    assert isinstance(arrived, RemoteError)
    assert (arrived.code, str(arrived)) == ("InternalFailure", "InternalFailure: later: perhaps")


@pytest.mark.parametrize("name", ["KeyError", "os.system", "annotations", "__name__"])
def test_an_error_of_others_is_named(name: str) -> None:
    arrived = ErrorWire(name, "x").error("a task failed: ")
    assert (type(arrived), str(arrived)) == (ServiceError, f"a task failed: {name}: x")


def test_a_cause_arrives_by_its_name_where_it_is_asked_for() -> None:
    error = ServiceError("refused")
    error.__cause__ = ConnectionResetError()
    cause = sent(error).__cause__
    assert isinstance(cause, ForeignError)
    assert (cause.name, str(cause)) == (
        "ConnectionResetError",
        "ConnectionResetError: ConnectionResetError",
    )
    assert ErrorWire.of(error).error().__cause__ is None


@pytest.mark.parametrize("text", ["x" * 100_000, "a lone surrogate \ud800"])
def test_every_text_can_be_sent(text: str) -> None:
    assert str(sent(ServiceError(text)))[:10] == text[:10]
    assert len(ErrorWire.of(ServiceError(text), most=5).text) == 5
