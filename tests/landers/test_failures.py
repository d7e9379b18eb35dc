from __future__ import annotations

from pathlib import Path

import pytest

from fanout.core.remote_error import ErrorWire
from fanout.errors import (
    CheckpointError,
    FanOutError,
    OptionError,
    PositionError,
    SetupError,
    SplitFailedError,
    StreamStateError,
)
from fanout.landers.messages import Failed, encode, from_lander
from fanout.landers.task import LanderTask
from fanout.landing.log.reading import BatchLimits
from tests.support.manual_source import ManualSource


def sent(error: Exception) -> FanOutError:
    """Return an error as the driver has it."""
    message = from_lander(encode(Failed(ErrorWire.with_cause(error))))
    assert isinstance(message, Failed)
    return message.failure()


@pytest.mark.parametrize(
    "kind",
    [CheckpointError, OptionError, PositionError, SetupError, SplitFailedError, StreamStateError],
)
def test_an_error_of_the_library_keeps_its_type_and_text(kind: type[FanOutError]) -> None:
    error = kind("as it is")
    error.__cause__ = PositionError("why")
    arrived = sent(error)
    assert (type(arrived), str(arrived)) == (kind, "as it is")
    assert isinstance(arrived.__cause__, PositionError)


def test_another_error_is_named() -> None:
    arrived = sent(KeyError("password"))
    assert isinstance(arrived, SplitFailedError)
    assert "KeyError: 'password'" in str(arrived)


@pytest.mark.parametrize("text", ["x" * 100_000, "a lone surrogate \ud800"])
def test_no_text_keeps_an_error_from_arriving(text: str) -> None:
    error = SplitFailedError(text)
    error.__cause__ = ValueError(text)
    assert str(sent(error))[:10] == text[:10]


def test_the_work_of_a_lander_shows_no_secret() -> None:
    task = LanderTask(
        source=ManualSource(),
        location=str(Path("/shared")),
        storage_options={"aws_secret_access_key": "hunter2"},
        run=1,
        limits=BatchLimits(1, 1, 1.0),
        available_now=False,
        address=("127.0.0.1", 1),
        secret=b"hunter3",
    )
    assert "hunter" not in repr(task)
