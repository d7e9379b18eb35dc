"""Sentences for people that keep the names of options as data, as each front end has its own."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterable
from string import Formatter
from typing import Self, TypeAlias, final

from fanout.core.error_text import text_of


@final
class Option(str):
    """An option in a sentence; as text it is the keyword of Python.

    A value stands behind it, as in `start='latest'`; `...` stands for none. `text` is what Python's
    sentence has in its place, such as `a token`.
    """

    __slots__ = ("name", "value")
    name: str
    value: str | None

    def __new__(  # noqa: D102 - the class says it
        cls, name: str, value: object = ..., *, text: str | None = None
    ) -> Self:
        shown = None if value is ... else repr(value)
        made = super().__new__(cls, text or (name if shown is None else f"{name}={shown}"))
        made.name, made.value = name, shown
        return made


Words: TypeAlias = Callable[[Option], str | None]
"""What a front end writes for an option: the option itself to leave it to others, or None where it
has no such option."""


class Sentence(str):
    """A text that keeps its parts; as text it is in the words of Python.

    Parts are texts, options, sentences, and errors, which stand for what they say.
    """

    __slots__ = ("parts",)
    parts: tuple[str, ...]

    def __new__(cls, *parts: object) -> Self:  # noqa: D102 - the class says it
        texts = tuple(part if isinstance(part, str) else _said(part) for part in parts)
        made = super().__new__(cls, "".join(texts))
        made.parts = texts
        return made

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the sentence of a constant text.

        It writes the option `start` as `{start}`, as `{start='latest'}` with a value, or as
        `{start:the start}` where Python's sentence has other words.
        """
        parts: list[str] = []
        for before, option, shown, _ in Formatter().parse(text):
            parts.append(before)
            if option is not None:
                name, _, value = option.partition("=")
                parts.append(Option(name, literal_eval(value) if value else ..., text=shown))
        return cls(*parts)

    def in_words(self, words: Words) -> Sentence:
        """Return it in the words of a front end; options that it lacks stay those of Python."""
        return type(self)(*(_in_words(part, words) for part in self.parts))


@final
class Suggestion(Sentence):
    """A part that is left out where a front end lacks an option that it names."""

    __slots__ = ()

    def in_words(self, words: Words) -> Sentence:
        """Return it in the words of a front end, or nothing."""
        options = (part for part in self.parts if isinstance(part, Option))
        return Sentence() if None in map(words, options) else super().in_words(words)


def joined(separator: str, parts: Iterable[str]) -> Sentence:
    """Return a sentence of parts with a separator between them."""
    return Sentence(*[text for part in parts for text in (separator, part)][1:])


def all_of(names: Iterable[str]) -> Sentence:
    """Name options with "and" between them."""
    return joined(" and ", map(Option, names))


def in_brackets(hint: str) -> str:
    """Return a clause in brackets, with a space before it; nothing where it is empty."""
    return Sentence(" (", hint, ")") if hint else ""


def _said(part: object) -> str:
    match part:
        case BaseException(args=(Sentence() as sentence,)) if sentence == text_of(part):
            return sentence
        case BaseException():
            return text_of(part)
        case _:
            return str(part)


def _in_words(part: str, words: Words) -> str:
    match part:
        case Option():
            return words(part) or part
        case Sentence():
            return part.in_words(words)
        case _:
            return part
