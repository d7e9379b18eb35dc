"""Make a decoder from options that are texts, for commands and for `format("fanout")`."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from fanout._secret_variables import REGISTRY_SECRETS
from fanout.core.sentence import Option, Sentence
from fanout.decoding.avro_decoder import Avro
from fanout.decoding.json_decoder import Json
from fanout.decoding.registry import SchemaRegistry, Schemas
from fanout.errors import FanOutError, OptionError, RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanout.decoding.decoder import Decoder

_LOG: Final = logging.getLogger(__name__)
_FORMATS: Final = ("json", "avro", "protobuf")
# What is in the text of a schema, and rarely in the name of a file.
_TEXT: Final = re.compile(r'[\s:{\["]')
_URL: Final = "registry"
_PREFIX: Final = "registry_"
_KEY: Final = "key_"
_OF_KEYS: Final = ("decode", "schema", "message", "subject")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """What a user has said about the decoder, in texts."""

    decode: str | None = None  # the format; without it there is no decoder
    schema: str | None = None  # its text, or the name of its file
    registry: str | None = None  # the address of a schema registry
    message: str | None = None  # the full name of the message of Protobuf
    subject: str | None = None  # whose newest schema is read with; the one of the topic if left out
    columns: Sequence[str] = ()
    into: str | None = None
    registry_username: str | None = None
    registry_ca_file: str | None = None
    registry_certificate_file: str | None = None
    registry_key_file: str | None = None
    key_decode: str | None = None  # the format of Kafka's keys; without it they have no decoder
    key_schema: str | None = None
    key_message: str | None = None
    key_subject: str | None = None
    key_into: str | None = None  # "key" if left out

    def decoder(self, topics: Sequence[str], stored: Callable[[], str] = str) -> Decoder | None:
        """Return the decoder, if any; `topics` are those that are read, where they are known.

        It may ask the registry, and waits for the answer. Where none comes, it reads with the
        schema that `stored` returns, that of a landing; empty text is none.

        Raises:
            OptionError: An option is malformed, is missing, or contradicts another one.
            RetryLaterError: The registry does not answer, and nothing is stored.
        """
        stored = lru_cache(stored)  # it opens the landing
        if self.decode is None:
            self._refuse("", "decode")
            return None
        if self.key_decode is None:
            self._refuse(_KEY, "key_decode")
            return self._decoder(topics, stored, "value")
        name = "key" if self.key_into is None else self.key_into
        if name in self.columns:
            clause = f" has {name!r}, where the fields of keys are: name another column in "
            raise OptionError(Option("columns"), clause, Option("key_into"))
        value = self._without_registry() if self._is_for_keys() else self
        whole = value._decoder(topics, stored, "value")  # noqa: SLF001 - of this class
        key = self._without_registry() if self.key_decode == "json" else self
        own: dict[str, Any] = {each: getattr(self, _KEY + each) for each in _OF_KEYS}
        key = replace(key, **own, columns=(), into=name)
        try:
            decoder = key._decoder(  # noqa: SLF001 - of this class
                topics, lambda: stored().partition("\n")[2], "key"
            )
        except FanOutError as error:
            error.args = (Sentence(error).in_words(_of_keys),)
            raise
        return replace(whole, key=decoder)

    def _is_for_keys(self) -> bool:
        """Return whether the registry has the schemas of keys alone."""
        return self.decode == "json" and self.key_decode != "json"

    def _without_registry(self) -> DecodeOptions:
        names = [each.name for each in fields(self) if each.name.startswith(_URL)]
        none: Any = dict.fromkeys(names)
        return replace(self, **none)

    def _decoder(self, topics: Sequence[str], stored: Callable[[], str], part: str) -> Decoder:
        """Return the decoder of a part of the records, `value` or `key`."""
        if self.decode not in _FORMATS:
            raise OptionError(Option("decode", self.decode), f" must be {', '.join(_FORMATS)}")
        if self.message is not None and self.decode != "protobuf":
            raise OptionError(Option("message"), " is for ", Option("decode", "protobuf"))
        if self.decode != "json":
            registry = self._registry()
            latest = None
            if self.schema is None:
                latest = self._newest(registry, topics, stored, part)
            kept: Any = {"registry": registry, "columns": self.columns, "into": self.into}
            if self.decode == "avro":
                return Avro(latest or _text(str(self.schema), Avro), **kept)
            from fanout.decoding import Protobuf  # noqa: PLC0415 - its libraries are an extra

            return Protobuf(latest or _file(str(self.schema)), self.message, **kept)
        for each in fields(self):
            if each.name.startswith((_URL, "subject")) and getattr(self, each.name) is not None:
                raise OptionError(Option(each.name), " is for avro and protobuf")
        if self.schema is None:
            example = ", such as 'id BIGINT, name STRING'"
            raise OptionError(Option("decode", "json"), " needs ", Option("schema"), example)
        return Json(_text(self.schema, Json), columns=self.columns, into=self.into)

    def _refuse(self, prefix: str, about: str) -> None:
        for each in fields(self):
            if each.name.startswith(prefix) and getattr(self, each.name):
                raise OptionError(Option(each.name), " is about ", Option(about), ": give both")

    def _registry(self) -> SchemaRegistry | None:
        """Return the registry, with the secrets of this process's environment."""
        settings = {
            each.name.removeprefix(_PREFIX): value
            for each in fields(self)
            if each.name.startswith(_PREFIX) and (value := getattr(self, each.name)) is not None
        }
        if self.registry is None:
            if settings:
                name = min(settings)
                raise OptionError(Option(_PREFIX + name), " is about ", Option(_URL), ": give both")
            return None
        kind = "token" if self.registry_username is None else "password"
        if _of_environment(kind):
            settings[kind] = _password if kind == "password" else _token
        elif self.registry_username is not None:
            name = Option(_PREFIX + kind)
            raise OptionError(Option("registry_username"), " has a password: set ", name)
        try:
            return SchemaRegistry(self.registry, **settings)
        except FanOutError as error:
            error.args = (Sentence(error).in_words(_in_these_options),)
            raise

    def _newest(
        self,
        registry: SchemaRegistry | None,
        topics: Sequence[str],
        stored: Callable[[], str],
        part: str,
    ) -> Schemas | bytes:
        """Return the newest schema of the registry, or the stored one where it does not answer."""
        kind, _, reader = stored().partition("\n")[0].partition(" ")
        wait = {"wait": 0.0} if kind == self.decode else {}
        try:
            return self._latest(registry, topics, part, **wait)
        except RetryLaterError as error:
            if kind != self.decode:
                raise
            _LOG.warning("%s: records are read with the schema that the landing stores", error)
            if kind == "avro":
                return tuple(json.loads(reader))
            return base64.b64decode(reader.partition(" ")[2])

    def _latest(
        self, registry: SchemaRegistry | None, topics: Sequence[str], part: str, **wait: float
    ) -> Schemas:
        if registry is None:
            raise OptionError(
                Option("decode", self.decode), " needs ", Option("schema"), " or ", Option(_URL)
            )
        if self.subject is not None:
            return registry.latest(self.subject, **wait)
        if len(topics) != 1:
            raise OptionError(
                Option("subject"),
                f" is missing: it names the newest schema to read with, such as 'orders-{part}'; "
                "or give ",
                Option("schema"),
            )
        return registry.latest(f"{topics[0]}-{part}", **wait)


def _of_environment(kind: str) -> str:
    return os.environ.get(REGISTRY_SECRETS[_PREFIX + kind], "")


def _of_this_process(kind: str) -> str:
    if found := _of_environment(kind):
        return found
    raise OptionError(
        f"{REGISTRY_SECRETS[_PREFIX + kind]} is not set in this process: set it there, too, such "
        "as in the environment of Spark's executors"
    )


def _password() -> str:
    """Return the password of the process that this is, such as one of Spark's executors."""
    return _of_this_process("password")


def _token() -> str:
    """Return the token of this process."""
    return _of_this_process("token")


def _in_these_options(option: Option) -> Option:
    return Option(_URL if option.name == "url" else _PREFIX + option.name)


def _of_keys(option: Option) -> Option:
    if option.name not in {*_OF_KEYS, "into"}:
        return option
    shown = "" if option.value is None else f"={option.value}"
    made = Option(_KEY + option.name, text=f"{_KEY}{option.name}{shown}")
    made.value = option.value
    return made


def _file(schema: str) -> str:
    if not Path(schema).is_file():
        raise OptionError(
            Option("schema", schema),
            " is no file: for protobuf it is what protoc writes with "
            "--include_imports --descriptor_set_out=FILE",
        )
    return schema


def _text(schema: str, kind: type[Avro | Json]) -> str:
    """Return the text of a schema, or what is in the file that has such a name."""
    is_file = False
    with suppress(OSError, ValueError):  # a schema may be too long for the name of a file
        is_file = Path(schema).is_file()
    if is_file:
        return _content(schema, kind)
    if not _TEXT.search(schema):
        raise OptionError(Option("schema", schema), " is neither a file nor the text of a schema")
    return schema


def _content(file: str, kind: type[Avro | Json]) -> str:
    """Return what is in a file of a schema; of another file nothing is shown."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise OptionError(Option("schema", file), " cannot be read: ", error) from error
    try:
        kind(text)
    except OptionError:
        problem = f" is a file without a schema: {kind.__name__} of Python says what is wrong in it"
        raise OptionError(Option("schema", file), problem) from None
    return text
