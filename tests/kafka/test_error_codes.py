"""What each error code of Kafka 4.3 means for a reader and for a writer, whatever the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from fanout.core.policy import Fatal, Pace, Retry
from fanout.errors import (
    BatchNotWrittenError,
    FencedError,
    ServiceError,
    UnwritableRecordError,
)
from fanout.kafka.protocol.error_codes import CODE_NAMES, RETRIABLE, error_of
from fanout.kafka.reading.policy import Remedy, judge
from fanout.kafka.writing.policy import final_error

if TYPE_CHECKING:
    from collections.abc import Mapping

LAST: Final = 133
CODES: Final = [code for code in CODE_NAMES if code]
JAVA_RETRIES: Final = {
    *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84),
    *(88, 89, 100, 103, 106, 122, 123, 133),
}

# What a reader does. What is not named here is answered to nobody who reads: it is tried again for
# some minutes, and then ends the stream with the code's name and that advice.
READ: Final[Mapping[str, set[int]]] = {
    "look at the offset": {1},
    "look for the topic": {3},
    "retry": (JAVA_RETRIES - {2, 3}) | {8, 11, 60, 77, 107, 108, 129},
    "retry, as damage": {2},
    "wait for access": {29, 30, 31, 33, 34, 53, 54, 58, *range(61, 68), 93, 97},
    "end": {4, 10, 12, 17, 18, 24, 32, 35, 40, 42, 43, 44, 76, 104, 114, 115},
}
# What a writer does; all else is final, with the code's name and a reason.
WRITE: Final[Mapping[str, set[int]]] = {
    "retry": JAVA_RETRIES | {55},
    "fenced": {47, 48, 90},
    "begin anew": {49, 120},
    "unwritable": {10, 18, 32, 87},
}
_RAISED: Final = {
    FencedError: "fenced",
    BatchNotWrittenError: "begin anew",
    UnwritableRecordError: "unwritable",
    ServiceError: "end",
}


def test_the_codes_are_those_of_kafka() -> None:
    assert [*CODE_NAMES] == [*range(-1, LAST + 1)]
    spots = {0: "NONE", 29: "TOPIC_AUTHORIZATION_FAILED", 78: "OFFSET_NOT_AVAILABLE"}
    spots |= {90: "PRODUCER_FENCED", 120: "TRANSACTION_ABORTABLE"}
    spots |= {LAST: "SHARE_SESSION_LIMIT_REACHED"}
    assert {code: CODE_NAMES[code] for code in spots} == spots
    assert RETRIABLE == JAVA_RETRIES


def outcome_of_reading(code: int) -> tuple[str, str]:
    error = error_of(code, "t-0")
    assert error is not None
    match judge(error, first=False):
        case Fatal(hint):
            return "end", hint
        case Remedy.FIND_OFFSET:
            return "look at the offset", ""
        case Remedy.FIND_TOPIC:
            return "look for the topic", ""
        case retry if retry.pace is Pace.SLOW:
            return "wait for access", retry.hint
        case retry if retry.limit == 3:
            return "retry, as damage", retry.hint
        case retry:
            return "retry" if retry.limit is None else "retry, then end", retry.hint


@pytest.mark.parametrize("code", CODES, ids=CODE_NAMES.get)
def test_a_reader_has_an_outcome_for_each_code(code: int) -> None:
    expected = next((what for what, codes in READ.items() if code in codes), "retry, then end")
    outcome, hint = outcome_of_reading(code)
    assert outcome == expected
    text = str(error_of(code, "t-0"))
    assert "UnknownError" not in text
    assert "please report" not in hint
    if expected == "retry, then end":
        assert "see" in hint
        assert "log" in hint


@pytest.mark.parametrize("code", CODES, ids=CODE_NAMES.get)
def test_a_writer_has_an_outcome_for_each_code(code: int) -> None:
    expected = next((what for what, codes in WRITE.items() if code in codes), "end")
    error = error_of(code, "t-0")
    assert error is not None
    final = final_error(error)
    outcome = "retry" if final is None else _RAISED[type(final)]
    assert outcome == expected
    assert "UnknownError" not in str(final or error)
    if expected == "end":
        assert str(final).count(": ") >= 2, "it names the code, and what to do"


def test_the_number_of_an_error_of_the_network_is_no_code_of_kafka() -> None:
    """104 is ECONNRESET, and INCONSISTENT_CLUSTER_ID."""
    verdict = judge(ConnectionResetError(104, "reset"), first=False)
    assert (type(verdict), getattr(verdict, "hint", "")) == (Retry, "")


def test_a_code_that_is_newer_is_tried_again_for_minutes_and_to_be_reported() -> None:
    outcome, hint = outcome_of_reading(LAST + 1)
    assert (outcome, "please report it" in hint) == ("retry, then end", True)
    error = error_of(LAST + 1, "t-0")
    assert error is not None
    assert "a code that is newer than Kafka 4.3" in str(final_error(error))
