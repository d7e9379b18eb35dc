"""Make a source, and how a query lands it, from the string options of `format("fanout")`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, final

from fanout._secret_variables import REGISTRY_SECRETS
from fanout.errors import OptionError
from fanout.landing.log.columns import stored_reader
from fanout.spark.dataframe.kafka_source_options import (
    KAFKA_OPTIONS,
    KAFKA_REFUSED,
    KAFKA_SECRETS_GO,
    KAFKA_WORDS,
    SHUFFLE_OPTIONS,
    kafka_source,
    shuffle_source,
)
from fanout.spark.dataframe.landing_thread import LandingOptions
from fanout.spark.dataframe.options import (
    READ_OPTIONS,
    STORAGE,
    ReadOptions,
    StringOptions,
    in_words_of_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fanout.core.source import Source

_COMMON: Final = ("source", "failOnDataLoss", "insecure", "maxBytesInFlight")
# What turns records into columns, with the keyword of `DecodeOptions` for each.
_DECODE: Final = {
    "decode": "decode",
    "schema": "schema",
    "schemaRegistryUrl": "registry",
    "message": "message",
    "subject": "subject",
    "schemaRegistryUsername": "registry_username",
    "schemaRegistryCaFile": "registry_ca_file",
    "schemaRegistryCertificateFile": "registry_certificate_file",
    "schemaRegistryKeyFile": "registry_key_file",
    "into": "into",
}
DECODE_KEYS: Final = {
    "keyDecode": "key_decode",
    "keySchema": "key_schema",
    "keyMessage": "key_message",
    "keySubject": "key_subject",
    "keyInto": "key_into",
}
TYPED: Final = (*_DECODE, "columns", "onBadRecord")
"""The names of the options that turn records into columns, but those for keys of Kafka."""

_DECODE_WORDS: Final = {
    **{keyword: name for name, keyword in (_DECODE | DECODE_KEYS).items()},
    **REGISTRY_SECRETS,
    "on_bad_record": "onBadRecord",
}
DECODE_REFUSED: Final = {
    f"schemaregistry{name}": f"it is a secret, and Spark shows options in its plans: set "
    f"{REGISTRY_SECRETS[f'registry_{name}']} in the environment where Spark's driver starts"
    for name in ("password", "token")
} | {"schema.registry.url": "write 'schemaRegistryUrl'"}
"""Why names of other readers of typed records are refused, in lower case."""
_KINESIS: Final = (
    "stream",
    "shards",
    "consumer",
    "mode",
    "startingPosition",
    "region",
    "endpointUrl",
    "roleArn",
    "externalId",
    "roleSessionName",
    "onBadAggregate",
    "onBadFrame",
)
_KINESIS_WORDS: Final = {
    "start": "startingPosition",
    "endpoint_url": "endpointUrl",
    "role_arn": "roleArn",
    "external_id": "externalId",
    "role_session_name": "roleSessionName",
    "on_bad_aggregate": "onBadAggregate",
    "on_bad_frame": "onBadFrame",
    "max_bytes_in_flight": "maxBytesInFlight",
}
_KINESIS_SECRETS_GO: Final = (
    "credentials come from the environment, the profile or the role of the machine where Spark's "
    "driver runs, and roleArn names a role to assume"
)
_START_WORDS: Final = ("TRIM_HORIZON", "LATEST", "EARLIEST")
_START_CHOICES: Final = (
    "TRIM_HORIZON, LATEST, a time with its zone such as 2026-11-22T08:00:00+00:00, or JSON that "
    'gives a shard one of these or a sequence number, like {"shardId-000000000000": "4961", '
    '"*": "LATEST"}'
)
# Other Kinesis sources of Spark have these names, some of them with a prefix.
_RENAMED: Final = {
    "streamname": "stream",
    "streamarn": "stream",
    "consumername": "consumer",
    "consumerarn": "consumer",
    "consumermode": "mode",
    "consumertype": "mode",
    "initialposition": "startingPosition",
    "startingposition": "startingPosition",
    "stsrolearn": "roleArn",
    "stssessionname": "roleSessionName",
    "roleexternalid": "externalId",
    "endpoint": "endpointUrl",
    "endpointurl": "endpointUrl",
    "region": "region",
    "failondataloss": "failOnDataLoss",
}
_KINESIS_REFUSED: Final = {
    prefix + name: f"write {instead!r}"
    for prefix in ("", "kinesis.")
    for name, instead in _RENAMED.items()
}

_SOURCES: Final = ("kinesis", "kafka", "shuffle")
SOURCE_OPTIONS: Final = {
    "kinesis": (*_COMMON, *_KINESIS, *TYPED),
    "kafka": (*_COMMON, *KAFKA_OPTIONS, *TYPED, *DECODE_KEYS),
    "shuffle": (*_COMMON, *KAFKA_OPTIONS, *SHUFFLE_OPTIONS),
}
"""The names of all options of each kind of source, `source` included."""

LANDING_OPTIONS: Final = ("maxWait", "keep", "maxBytesAhead", "newColumns")
"""The names of the options that say how a query lands its source."""
_AGE: Final = re.compile(r"([0-9]{1,6})([mhdw])")
_LONGEST_WAIT: Final = 3600.0
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def source_from_options(
    options: Mapping[str, str], others: Iterable[str] = (), *, stored: Callable[[], str] = str
) -> Source:
    """Return the source that options describe. Secrets come from the environment of this process.

    Args:
        options: By name in any case; `source` is one of them.
        others: The names of options that are about neither a source nor how it is landed.
        stored: Returns the schema to read with where the registry does not answer; empty for none.

    Raises:
        OptionError: An option is unknown, refused, a secret or malformed, or two contradict each
            other.
        SetupError: A library is missing.
    """
    given = StringOptions(options)
    if given.text("source") == "share":
        raise OptionError(
            "source='share' cannot be landed: a landing continues after positions, and a share "
            "group has none; read its topics with source='kafka'"
        )
    kind = given.word("source", *_SOURCES)
    assert kind is not None, "there is one"
    make, refused, secrets_go = _ways(kind)
    known = (*SOURCE_OPTIONS[kind], *LANDING_OPTIONS, *others)
    given.refuse_others(known, _but({**refused, **DECODE_REFUSED}, known), secrets_go)
    with in_words_of_options(words_of(given)):
        fields = _common(given) | ({} if kind == "shuffle" else _typed(given, stored))
        return make(given, fields)


def words_of(given: StringOptions) -> dict[str, str]:
    """Return the options for the keywords of a source, for messages; `source` is one of `given`."""
    of_source = _KINESIS_WORDS if given.text("source") == "kinesis" else KAFKA_WORDS
    return _DECODE_WORDS | of_source


def refuse_without_source(options: Mapping[str, str]) -> None:
    """Raise OptionError if options without `source` have one for a query that lands its source."""
    every = {name for names in SOURCE_OPTIONS.values() for name in names} | {*LANDING_OPTIONS}
    every.remove("failOnDataLoss")  # a reader has it, too
    names = {name.lower(): name for name in every}
    if found := sorted(names[name.lower()] for name in options if name.lower() in names):
        raise OptionError(
            f"{' and '.join(found)} is for a query that lands a source by itself: add the option "
            f"source, one of {', '.join(_SOURCES)}; or leave it out to read what is landed by "
            f"another process"
        )


def _ways(
    kind: str,
) -> tuple[Callable[[StringOptions, dict[str, Any]], Source], Mapping[str, str], str]:
    if kind == "kinesis":
        return _kinesis_source, _KINESIS_REFUSED, _KINESIS_SECRETS_GO
    make = kafka_source if kind == "kafka" else shuffle_source
    return make, KAFKA_REFUSED, KAFKA_SECRETS_GO


def _but(refused: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    names = {name.lower() for name in known}
    return {name: reason for name, reason in refused.items() if name not in names}


def _common(given: StringOptions) -> dict[str, Any]:
    """Return the keywords that every source has."""
    fields: dict[str, Any] = {}
    loss, size = given.flag("failOnDataLoss"), given.number("maxBytesInFlight")
    if loss is not None:
        fields["on_data_loss"] = "fail" if loss else "earliest"
    if size is not None:
        fields["max_bytes_in_flight"] = size
    return fields


def _typed(given: StringOptions, stored: Callable[[], str]) -> dict[str, Any]:
    """Return the keywords of a source whose records are decoded, or none."""
    from fanout.decoding.options import DecodeOptions  # noqa: PLC0415 - needs an optional extra

    columns, topics = (
        [name.strip() for name in (given.text(option) or "").split(",") if name.strip()]
        for option in ("columns", "subscribe")
    )
    every = _DECODE | DECODE_KEYS
    texts: dict[str, Any] = {keyword: given.text(name) for name, keyword in every.items()}
    decoder = DecodeOptions(**texts, columns=columns).decoder(topics, stored)
    return {"decode": decoder, "on_bad_record": given.word("onBadRecord", "fail", "gap") or "fail"}


def _kinesis_source(given: StringOptions, fields: dict[str, Any]) -> Source:
    from fanout.kinesis.options import streams_of  # noqa: PLC0415 - an optional extra
    from fanout.kinesis.source import KinesisSource  # noqa: PLC0415 - the same

    texts = ("consumer", "region", "endpointUrl", "roleArn", "externalId", "roleSessionName")
    for name in texts:
        if (value := given.text(name)) is not None:
            fields[_keyword(name)] = value
    for name, *words in (
        ("mode", "efo", "polling"),
        ("onBadAggregate", "fail", "gap"),
        ("onBadFrame", "fail", "gap"),
    ):
        if (value := given.word(name, *words)) is not None:
            fields[_keyword(name)] = value
    if (shards := given.text("shards")) is not None:
        fields["shards"] = shards.split(",")
    if (start := given.text("startingPosition")) is not None:
        fields["start"] = _kinesis_start(given, start)
    return KinesisSource(
        stream=streams_of(given.required("stream", "it names the Kinesis stream, or its ARN")),
        insecure=given.flag("insecure") or False,
        **fields,
    )


def _keyword(name: str) -> str:
    return next((word for word, option in _KINESIS_WORDS.items() if option == name), name)


def _kinesis_start(given: StringOptions, text: str) -> object:
    if text.lstrip().startswith("{"):
        of_each = given.json_object("startingPosition", '{"shardId-000000000000": "LATEST"}') or {}
        return {shard: _position(value) for shard, value in of_each.items()}
    return _position(text)


def _position(text: object) -> object:
    if isinstance(text, str):
        if text.upper() in _START_WORDS or text.isdigit():
            return text
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment
    raise OptionError(f"startingPosition={text!r} must be {_START_CHOICES}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LandedSource:
    """A source that a query lands by itself."""

    # Returns the source with this process's secrets, and checks the options that describe it.
    make: Callable[[], Source]
    landing: LandingOptions
    reading: ReadOptions

    @classmethod
    def parse(cls, options: Mapping[str, str], source: Source | None) -> Self | None:
        """Check options, but those that describe the source; None if they describe none.

        Upper and lower case of their names are the same. `source` is None where options describe
        it.

        Raises:
            OptionError: An option is unknown, missing or malformed.
        """
        own = {name: options[name] for name in options if not name.lower().startswith(STORAGE)}
        given, words = StringOptions(own), dict[str, str]()
        if source is not None:
            given.refuse_others((*READ_OPTIONS, *LANDING_OPTIONS), {}, "it belongs to the source")
            make: Callable[[], Source] = partial(_same, source)
        elif given.text("source") is None:
            refuse_without_source(own)
            return None
        else:
            words = words_of(given)
        names = {name.lower() for name in READ_OPTIONS}
        reading = ReadOptions.parse(
            {name: options[name] for name in options if name not in own or name.lower() in names},
            streaming=True,
        )
        if source is None:
            stored = partial(_stored_reader, reading)
            make = partial(source_from_options, own, READ_OPTIONS, stored=stored)
        landing = replace(_landing(given, reading), words=words)
        return cls(make=make, landing=landing, reading=reading)


def _stored_reader(reading: ReadOptions) -> str:
    return stored_reader(reading.open())


def _same(source: Source) -> Source:
    return source


def _landing(given: StringOptions, reading: ReadOptions) -> LandingOptions:
    keep, wait, ahead = given.text("keep"), given.seconds("maxWait"), given.number("maxBytesAhead")
    age = None if keep is None else _AGE.fullmatch(keep)
    if keep is not None and age is None:
        raise OptionError(f"keep={keep!r} must be an age such as 90m, 12h, 7d or 2w")
    if keep is not None and reading.reader is None:
        raise OptionError(
            "keep deletes what was landed longer ago: name the query with the option reader, so "
            "that what it has not read stays"
        )
    if wait is not None and not 0 <= wait <= _LONGEST_WAIT:
        raise OptionError(f"maxWait={wait:g} must be 0 to {_LONGEST_WAIT:g} seconds")
    if ahead == 0:
        raise OptionError("maxBytesAhead=0 must be at least 1")
    new_columns = given.word("newColumns", "add", "ignore") or "add"
    landing = LandingOptions(reading.landing, storage=reading.storage, new_columns=new_columns)
    return replace(
        landing,
        keep=None if age is None else timedelta(**{_UNITS[age[2]]: int(age[1])}),
        max_wait=landing.max_wait if wait is None else wait,
        max_bytes_ahead=landing.max_bytes_ahead if ahead is None else ahead,
    )
