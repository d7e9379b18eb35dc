"""A sentence has the words of Python, and those of each front end that shows it."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - shows that errors can be sent to a worker

import pytest

from fanout.core.sentence import Option, Sentence, Suggestion, all_of, in_brackets, joined
from fanout.errors import OptionError, ServiceError

PASS = Suggestion.of(", or pass {insecure=True} if the network is trusted")
START = OptionError(Option("start", "a b"), " is not there; leave ", Option("start"), " out", PASS)
IN_PYTHON = (
    "start='a b' is not there; leave start out, or pass insecure=True if the network is trusted"
)


def flag(option: Option) -> str | None:
    return "--start" if option.name == "start" else None


def everything(option: Option) -> str:
    return f"--{option.name}"


def test_as_text_a_sentence_has_the_keywords_of_python() -> None:
    assert str(START) == IN_PYTHON
    assert START.args == (IN_PYTHON,)
    assert type(str(START)) is str
    assert f"{Option('token', text='a token')}, {Option('token')}" == "a token, token"


def test_a_constant_text_writes_options_in_braces() -> None:
    said = Sentence.of("{start='a b'} is not {start:the start}, {start}; {insecure=True}")
    assert said == "start='a b' is not the start, start; insecure=True"
    assert said.in_words(everything) == "--start is not --start, --start; --insecure"
    options = [part for part in said.parts if isinstance(part, Option)]
    assert [option.value for option in options] == ["'a b'", None, None, "True"]


def test_options_have_the_words_of_the_front_end() -> None:
    assert Sentence(START).in_words(everything) == (
        "--start is not there; leave --start out, or pass --insecure if the network is trusted"
    )


def test_a_remedy_by_an_option_that_is_missing_is_left_out() -> None:
    assert Sentence(START).in_words(flag) == "--start is not there; leave --start out"


def test_another_option_that_is_missing_keeps_its_keyword() -> None:
    assert Sentence(Option("start", 1), " needs ", Option("group_id")).in_words(flag) == (
        "--start needs group_id"
    )


def test_options_that_a_front_end_leaves_are_in_the_words_of_the_next_one() -> None:
    left = Sentence(START).in_words(lambda option: option)
    assert left == IN_PYTHON
    assert left.in_words(flag) == "--start is not there; leave --start out"


def test_a_value_with_the_name_of_an_option_stays() -> None:
    said = Sentence("there is no topic 'start' in ", Option("topic", "start"), ": start=1")
    assert said.in_words(flag) == "there is no topic 'start' in topic='start': start=1"


def test_an_error_within_a_sentence_keeps_its_options() -> None:
    outer = ServiceError("it cannot go on: ", START, in_brackets(Sentence("see ", Option("start"))))
    assert str(outer) == f"it cannot go on: {IN_PYTHON} (see start)"
    assert Sentence(outer).in_words(flag) == (
        "it cannot go on: --start is not there; leave --start out (see --start)"
    )
    assert str(OptionError("it failed: ", TimeoutError())) == "it failed: TimeoutError"
    assert str(OptionError("it failed: ", ServiceError(""))) == "it failed: ServiceError"


@pytest.mark.parametrize("copied", [copy.deepcopy(START), pickle.loads(pickle.dumps(START))])  # noqa: S301 - our own
def test_an_error_that_travels_keeps_its_options(copied: OptionError) -> None:
    assert str(copied) == IN_PYTHON
    assert Sentence(copied).in_words(flag) == "--start is not there; leave --start out"


def test_several_are_joined() -> None:
    assert all_of(["a", "start"]).in_words(flag) == "a and --start"
    assert not all_of([])
    assert joined("; ", ["a", Option("start")]).in_words(flag) == "a; --start"
    assert in_brackets("") == ""


def test_users_make_errors_of_texts() -> None:
    assert repr(OptionError("it is wrong")) == "OptionError('it is wrong')"
    assert Sentence(OptionError("start is wrong")).in_words(flag) == "start is wrong"
