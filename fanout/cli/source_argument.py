"""The argument that names a source, kinesis://STREAM or kafka://TOPIC, and times to begin at."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias, cast

import typer

from fanout.core.sentence import Option
from fanout.errors import OptionError

Service: TypeAlias = Literal["kinesis", "kafka"]

_SOURCE: Final = re.compile(r"(kinesis|kafka)://(.+)", re.DOTALL)

SourceName = Annotated[
    str,
    typer.Argument(
        help="kinesis://STREAM, by name or ARN, or kafka://TOPIC; several streams or topics by "
        "commas."
    ),
]


def parse_source(
    source: str, *, kinesis: dict[str, object], kafka: dict[str, object]
) -> tuple[Service, str]:
    """Return the service of a source, and the name of the stream or of the topics.

    `kinesis` and `kafka` are the options that only one service has, as they were given: one of the
    other service is refused.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise OptionError(Option("source", source), " must be kinesis://STREAM or kafka://TOPIC")
    service = cast("Service", match[1])
    others = kafka if service == "kinesis" else kinesis
    for name, value in others.items():
        if value is not None:
            raise OptionError(Option(name, value), f" cannot be used with {service}://")
    return service, match[2]


def aware_time(text: str) -> datetime | None:
    """Return a time that is written in ISO 8601 with its zone; None for any other text."""
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    return None
