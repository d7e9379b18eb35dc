"""A schema registry that speaks Confluent's API, as Apicurio, Karapace and Redpanda do, too."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, final

from fanout.core.option_checks import check_seconds
from fanout.core.sentence import Option
from fanout.errors import OptionError, RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Iterable

Schemas: TypeAlias = tuple[str, ...]
"""The text of a schema, behind those that it refers to; of Protobuf, descriptors as base64."""

_LARGEST_ANSWER: Final = 16 * 1024 * 1024
_NOT_FOUND: Final = 404
_MOST_REFERENCES: Final = 256
# An id may reach a copy of the registry a little later than the records that have it.
_ASKED_AGAIN_AFTER: Final = 30.0
_MOST_KNOWN: Final = 4096
_SERIALIZED: Final = "?format=serialized"


class _Found(NamedTuple):
    """What a registry has for an id: a schema, or why there is none, and until when that holds."""

    schemas: Schemas = ()
    kind: str = ""
    problem: str = ""
    until: float = float("inf")


@final
@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Where a schema registry is, and how to connect to it.

    Args:
        url: Its address, such as `"https://registry:8081"`; Apicurio's ends in
            `/apis/ccompat/v7`.
        username: The name for basic authentication; the key of an API at Confluent Cloud.
        password: The password of that name, or the secret of that key.
        token: A bearer token, in place of both.
        ca_file: The certificates of the authorities to trust; None for those of the system.
        certificate_file: The certificate of this client, where the registry asks for one.
        key_file: Its key, if that is in a file of its own.
        timeout: The longest time of an answer, in seconds.

    Raises:
        OptionError: If an option is malformed, or a secret would be sent over plain http.
    """

    url: str
    username: str | None = field(default=None, kw_only=True)
    password: str | None = field(default=None, repr=False, kw_only=True)
    token: str | None = field(default=None, repr=False, kw_only=True)
    ca_file: str | None = field(default=None, kw_only=True)
    certificate_file: str | None = field(default=None, kw_only=True)
    key_file: str | None = field(default=None, kw_only=True)
    timeout: float = field(default=10.0, kw_only=True)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url if isinstance(self.url, str) else "")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise OptionError(Option("url", ...), " must be like 'https://registry:8081'")
        if parts.username is not None or parts.password is not None:
            raise OptionError("url has a password in it: pass username and password")
        if (self.username is None) != (self.password is None):
            raise OptionError("username and password belong together: pass both, or none")
        if self.token is not None and self.username is not None:
            raise OptionError("a registry gets a token, or a username and a password, not both")
        secret = self.token is not None or self.password is not None
        if secret and parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost"}:
            raise OptionError("a password or a token needs https")
        check_seconds("timeout", self.timeout)

    def latest(self, subject: str) -> Schemas:
        """Return the newest schema of a subject, such as `"orders-value"`; this asks the registry.

        Raises:
            OptionError: If there is no such subject.
            RetryLaterError: If the registry does not answer.
        """
        path = f"/subjects/{_quoted(subject)}/versions"
        answer = self._get(f"{path}/latest")
        if answer is not None and answer.get("schemaType") == "PROTOBUF":
            answer = self._get(f"{path}/{answer.get('version', 'latest')}{_SERIALIZED}")
        if answer is None:
            raise OptionError(Option("subject", subject), f" is not in the registry {self.url}")
        return self._schemas(answer)

    def answer(self, number: int, kind: str = "AVRO") -> _Found:
        """Return what the registry has for an id, and ask it if that is not known."""
        if not self._knows(number):
            _KNOWN[self, number] = self._ask(number)
        found = _KNOWN[self, number]
        if not found.problem and found.kind != kind:
            return _Found(problem=f"the schema {number} is {found.kind}, and not {kind}")
        return found

    async def load(self, numbers: Iterable[int]) -> None:
        """Ask for ids that are not known, in a thread; what is answered is kept."""
        for oldest in list(_KNOWN)[:-_MOST_KNOWN]:
            _KNOWN.pop(oldest, None)
        if missing := [number for number in numbers if not self._knows(number)]:
            await asyncio.to_thread(lambda: [self.answer(number) for number in missing])

    def _knows(self, number: int) -> bool:
        found = _KNOWN.get((self, number))
        return found is not None and found.until > time.monotonic()

    def _ask(self, number: int) -> _Found:
        answer = self._get(f"/schemas/ids/{number}")
        if answer is None:
            until = time.monotonic() + _ASKED_AGAIN_AFTER
            return _Found(problem=f"the registry has no schema {number}", until=until)
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":  # the names of messages are in the schema itself
            return _Found((str(answer["schema"]),), kind)
        return _Found(self._schemas(answer), kind)

    def _schemas(self, answer: dict[str, Any]) -> Schemas:
        """Return a schema behind those that it refers to, each once."""
        found: dict[tuple[str, int], str] = {}
        self._add_references(answer, found)
        return (*found.values(), str(answer["schema"]))

    def _add_references(self, answer: dict[str, Any], found: dict[tuple[str, int], str]) -> None:
        for each in answer.get("references") or ():
            try:
                subject, version = place = str(each["subject"]), int(each["version"])
            except (KeyError, TypeError, ValueError) as error:
                raise RetryLaterError("the schema registry answers with a bad reference") from error
            if place in found:
                continue
            if len(found) >= _MOST_REFERENCES:
                raise OptionError(f"a schema refers to more than {_MOST_REFERENCES} others")
            is_protobuf = answer.get("schemaType") == "PROTOBUF"
            more = _SERIALIZED if is_protobuf else ""
            other = self._get(f"/subjects/{_quoted(subject)}/versions/{version}{more}")
            if other is None:
                raise RetryLaterError(f"the registry has no version {version} of {subject}")
            self._add_references(other, found)
            text = str(other["schema"])
            found[place] = _named(text, str(each.get("name"))) if is_protobuf else text

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return an answer; None where there is nothing."""
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.username is not None:
            pair = base64.b64encode(f"{self.username}:{self.password}".encode())
            headers["Authorization"] = f"Basic {pair.decode()}"
        # The scheme is http or https.
        request = urllib.request.Request(self.url.rstrip("/") + path, headers=headers)  # noqa: S310
        try:
            opener = self._opener()
        except OSError as error:
            raise OptionError(
                "the certificates for the registry cannot be used: ", error
            ) from error
        try:
            with opener.open(request, timeout=self.timeout) as response:
                answer = json.loads(response.read(_LARGEST_ANSWER))
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            raise RetryLaterError(f"the schema registry answers {error.code}") from error
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise RetryLaterError("the schema registry does not answer") from error
        if not isinstance(answer, dict) or "schema" not in answer:
            raise RetryLaterError("the schema registry answers without a schema")
        return answer

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirects()
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: another host would get the password."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _named(descriptor: str, name: str) -> str:
    """Give a descriptor of Protobuf the name that it is imported by; the last name counts."""
    data = name.encode()
    more = b"\n" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data
    try:
        return base64.b64encode(base64.b64decode(descriptor, validate=True) + more).decode()
    except ValueError:  # it is text
        return descriptor


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


_KNOWN: Final[dict[tuple[SchemaRegistry, int], _Found]] = {}
