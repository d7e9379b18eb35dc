"""Where Kinesis is called, and over which version of HTTP."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from fanout.core.option_checks import is_loopback
from fanout.core.sentence import Option, Suggestion
from fanout.errors import OptionError

# It has a name of its own: the `--insecure` of a command is about Kafka.
_OR_PASS: Final = Suggestion.of(
    ", or pass {insecure_kinesis:insecure=True} if the network is trusted"
)
HTTP_2: Final = 2
"""The value of `http_version` that needs a library of its own."""
HTTP_VERSIONS: Final = (1.1, HTTP_2)
"""The values of `http_version`, the default first."""


def check_endpoint(url: str, *, insecure: bool, service: str = "Kinesis") -> None:
    """Accept https, plain http on this machine or if `insecure`, and no user or password."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            Option("endpoint_url"),
            " must not hold a user or a password: it is shown in messages, and requests are "
            "signed with the credentials of the session",
        )
    match parts.scheme:
        case "https":
            return
        case "http" if insecure or is_loopback(parts.hostname or ""):
            return
        case "http":
            raise OptionError(
                f"the {service} endpoint on {parts.hostname} would be used without TLS: use https",
                _OR_PASS,
            )
        case _:
            raise OptionError(
                Option("endpoint_url"), " must begin with https:// (or http:// on this machine)"
            )
