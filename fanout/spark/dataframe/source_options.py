"""Make a source from the string options of `format("fanout")`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from fanout.errors import OptionError
from fanout.spark.dataframe.given_options import GivenOptions
from fanout.spark.dataframe.kafka_source_options import (
    KAFKA_OPTIONS,
    KAFKA_REFUSED,
    KAFKA_SECRETS_GO,
    KAFKA_WORDS,
    SHUFFLE_OPTIONS,
    kafka_source,
    shuffle_source,
)
from fanout.spark.dataframe.option_words import in_words_of_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fanout.core.source import Source

_COMMON: Final = ("source", "failOnDataLoss", "insecure", "maxBytesInFlight")
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
    "kinesis": (*_COMMON, *_KINESIS),
    "kafka": (*_COMMON, *KAFKA_OPTIONS),
    "shuffle": (*_COMMON, *KAFKA_OPTIONS, *SHUFFLE_OPTIONS),
}
"""The names of all options of each kind of source, `source` included."""

LANDING_OPTIONS: Final = ("maxWait", "keep", "maxBytesAhead")
"""The names of the options that say how a query lands its source."""


def source_from_options(options: Mapping[str, str], others: Iterable[str] = ()) -> Source:
    """Return the source that options describe. Secrets come from the environment of this process.

    Args:
        options: By name in any case; `source` is one of them.
        others: The names of options that are about neither a source nor how it is landed.

    Raises:
        OptionError: An option is unknown, refused, a secret or malformed, or two contradict each
            other.
        SetupError: A library is missing.
    """
    given = GivenOptions(options)
    if given.text("source") == "share":
        raise OptionError(
            "source='share' cannot be landed: a landing continues after positions, and a share "
            "group has none; read its topics with source='kafka'"
        )
    kind = given.word("source", *_SOURCES)
    assert kind is not None, "there is one"
    make, refused, secrets_go = _ways(kind)
    known = (*SOURCE_OPTIONS[kind], *LANDING_OPTIONS, *others)
    given.refuse_others(known, _but(refused, known), secrets_go)
    with in_words_of_options(words_of(given)):
        return make(given, _common(given))


def words_of(given: GivenOptions) -> dict[str, str]:
    """Return the options for the keywords of a source, for messages; `source` is one of `given`."""
    return dict(_KINESIS_WORDS if given.text("source") == "kinesis" else KAFKA_WORDS)


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
) -> tuple[Callable[[GivenOptions, dict[str, Any]], Source], Mapping[str, str], str]:
    if kind == "kinesis":
        return _kinesis_source, _KINESIS_REFUSED, _KINESIS_SECRETS_GO
    make = kafka_source if kind == "kafka" else shuffle_source
    return make, KAFKA_REFUSED, KAFKA_SECRETS_GO


def _but(refused: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    names = {name.lower() for name in known}
    return {name: reason for name, reason in refused.items() if name not in names}


def _common(given: GivenOptions) -> dict[str, Any]:
    """Return the keywords that every source has."""
    fields: dict[str, Any] = {}
    loss, size = given.flag("failOnDataLoss"), given.number("maxBytesInFlight")
    if loss is not None:
        fields["on_data_loss"] = "fail" if loss else "earliest"
    if size is not None:
        fields["max_bytes_in_flight"] = size
    return fields


def _kinesis_source(given: GivenOptions, fields: dict[str, Any]) -> Source:
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


def _kinesis_start(given: GivenOptions, text: str) -> object:
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
