"""Schemas by their ids, and a registry that speaks Confluent's API, as Apicurio does, too."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import math
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, final
from uuid import UUID

from tenacity import Retrying, retry_if_exception, stop_before_delay

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.error_text import text_of
from fanout.core.option_checks import (
    as_sequence,
    check_files,
    check_seconds,
    check_text,
    number,
    one_of,
    wrong_type,
)
from fanout.core.sentence import Option, Sentence
from fanout.core.user_functions import check_function, is_interrupt
from fanout.errors import FanOutError, OptionError, RetryLaterError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from tenacity import RetryCallState

Schemas: TypeAlias = tuple[str, ...]
"""The text of a schema, behind those that it refers to; of Protobuf, descriptors as base64."""


class Newest(tuple[str, ...]):
    """The schemas that were the newest of a subject when the registry was asked."""

    __slots__ = ()


Id: TypeAlias = int | UUID
"""What names a schema before a record."""

_LARGEST_ANSWER: Final = 16 * 1024 * 1024
_NOT_FOUND: Final = 404
# Of a gateway, while the registry behind it starts; a slow request; too many of them.
_PASSING: Final = frozenset({404, 408, 429})
_ERRORS_OF_SERVERS: Final = 500
_BACKOFF: Final = Backoff()
# What the error codes of a registry begin with where it has no such id, subject, or version. A
# gateway in front of a registry answers 404, too, while the registry starts.
_CODES_OF_NONE: Final = 404
# The schema does not go with others of its subject, or is none.
_REFUSED: Final = frozenset({409, 422})
_NOT_ALLOWED: Final = frozenset({401, 403})
_ACCOUNT: Final = Sentence.of(
    "give {registry_username:username} and {registry_password:password}, or "
    "{registry_token:token}, that it accepts"
)
_NO_REGISTRY: Final = "check that its URL is that of a registry, and its path"
_MOST_REFERENCES: Final = 256
# An id may reach a copy of the registry a little later than the records that have it.
_ASKED_AGAIN_AFTER: Final = 30.0
_MOST_KNOWN: Final = 4096
_SECRETS: Final = ("password", "token")
_SERIALIZED: Final = "?format=serialized"
_LOG: Final = logging.getLogger(__name__)
_TOKEN: Final = re.compile(r"[!-~]+")


class Found(NamedTuple):
    """What a registry has for an id: a schema, or why there is none, and until when that holds."""

    schemas: Schemas = ()
    kind: str = "AVRO"
    problem: str = ""
    until: float = float("inf")

    @classmethod
    def nothing(cls, problem: str) -> Found:
        """Return that there is no schema of an id, for now."""
        return cls(problem=problem, until=time.monotonic() + _ASKED_AGAIN_AFTER)


@dataclass(frozen=True, slots=True)
class AnyRegistry(ABC):
    """What has schemas by their id. Its answers are kept in this process."""

    framing: ClassVar[str]
    """What stands before records that name their schema by such an id."""

    def answer(self, number: Id, kind: str = "AVRO") -> Found:
        """Return what the registry has for an id, and ask it if that is not known.

        On an event loop it is not asked: `load` has done that.
        """
        if not (_on_event_loop() or self._knows(number)):
            self._learn(number)
        found = _KNOWN.get((self, number))
        if found is None:
            raise RetryLaterError(
                "the schema of a record is not known yet: on an event loop, await prepare(records) "
                "of the decoder before it decodes them"
            )
        if not found.problem and found.kind != kind:
            return Found(problem=f"the schema {number} is {found.kind}, and not {kind}")
        return found

    async def load(self, numbers: Iterable[Id]) -> None:
        """Ask for ids that are not known, in a thread; what is answered is kept."""
        for oldest in list(_KNOWN)[:-_MOST_KNOWN]:
            _KNOWN.pop(oldest, None)
        if missing := [number for number in numbers if not self._knows(number)]:
            await asyncio.to_thread(lambda: [self.answer(each) for each in missing])

    def _learn(self, number: Id) -> None:
        """Ask for an id, or wait for another thread that asks for it, and fail as that does."""
        mine: Future[Found] = Future()
        asking = _ASKING.setdefault((self, number), mine)
        if asking is mine:
            try:
                mine.set_result(self._ask(number))
            except BaseException as error:  # noqa: BLE001 - it is raised below
                mine.set_exception(error)
            finally:
                del _ASKING[self, number]
        try:
            _KNOWN[self, number] = asking.result()
        finally:
            del mine, asking  # an error refers to this frame

    def _knows(self, number: Id) -> bool:
        found = _KNOWN.get((self, number))
        return found is not None and found.until > time.monotonic()

    def latest(self, subject: str, *, wait: float = 10.0) -> Schemas:
        """Return the newest schema of a subject, such as `"orders-value"`; this asks the registry.

        Args:
            subject: Where the schema is; in Glue its name.
            wait: Seconds to ask again, after growing pauses, where the registry does not answer.
                On an event loop, and where it refuses, it is asked once. In Glue it counts for
                nothing: there botocore asks again.

        Raises:
            OptionError: If there is no such subject.
            RetryLaterError: If the registry does not answer.
        """
        check_text("subject", subject, or_none=False)
        if not 0 <= number("wait", wait) < math.inf:
            raise OptionError(Option("wait", wait), " must be 0 seconds or more, and finite")
        attempts = Retrying(
            wait=FullJitter(_BACKOFF, Random()),  # noqa: S311 - jitter
            stop=stop_before_delay(0.0 if _on_event_loop() else wait),
            retry=retry_if_exception(_may_pass),
            before_sleep=_log_wait,
            reraise=True,
        )
        found = attempts(self._latest, subject)
        if found is None:
            raise OptionError(Option("subject", subject), f" is not in the registry {self}")
        return Newest(found)

    def id_of(
        self,
        subject: str,
        schema: object,
        *,
        register: bool = False,
        kind: Literal["AVRO", "JSON", "PROTOBUF"] = "AVRO",
        references: Sequence[Mapping[str, str | int]] = (),
        guid: bool = False,
    ) -> int | str:
        """Return the id of a schema, for `Avro(..., schema_id=...)`; this asks the registry.

        Args:
            subject: Where the schema is, such as `"orders-value"`; in Glue the name of a schema.
            schema: Its text, what Python has of it, or what `latest` returns. Of Protobuf it is the
                text of a .proto file, or a descriptor of the file as base64.
            register: Whether to add it where the subject does not have it.
            kind: The format that the schema is of.
            references: Each schema that it refers to, as `{"name": "shop.Item", "subject":
                "item-value", "version": 1}`. They are in the registry already; Glue has none.
            guid: Whether to return the GUID of the schema, which `encode` writes into a header, and
                no number; Glue has UUIDs alone.

        Raises:
            OptionError: If the subject does not have the schema, or does not take it.
            RetryLaterError: If the registry does not answer.
        """
        check_text("subject", subject, or_none=False)
        wanted = "a list of mappings with name, subject and version"
        for each in as_sequence("references", references, wanted):
            if not isinstance(each, Mapping):
                raise wrong_type("references", each, wanted)
        one_of("kind", kind, "AVRO", "JSON", "PROTOBUF")
        *others, text = schema_texts(schema)
        if others and not references:
            raise OptionError("the schema refers to others: name them by ", Option("references"))
        about = {"schemaType": kind, "references": [dict(each) for each in references]}
        found = self._find(subject, text, about, register=register, guid=guid)
        if found is None:
            raise OptionError(
                Option("subject", subject), f" does not have the schema in the registry {self}"
            )
        return found

    @abstractmethod
    def _ask(self, number: Id) -> Found:
        """Ask for an id."""

    @abstractmethod
    def _latest(self, subject: str) -> Schemas | None:
        """Ask for the newest schema of a subject."""

    @abstractmethod
    def _find(
        self, subject: str, text: str, about: dict[str, Any], *, register: bool, guid: bool
    ) -> int | str | None:
        """Ask for the id of a schema of a subject, and add it if `register`.

        `about` has its `schemaType`, and the `references`.
        """


@final
@dataclass(frozen=True, slots=True)
class SchemaRegistry(AnyRegistry):
    """Where a schema registry is, and how to connect to it.

    Args:
        url: Its address, such as `"https://registry:8081"`; Apicurio's ends in
            `/apis/ccompat/v7`.
        username: The name for basic authentication; the key of an API at Confluent Cloud.
        password: The password of that name, or the secret of that key. Or a function that returns
            it: it is called for each question, in a thread on an event loop. Other processes, such
            as Spark's executors, need a function, because a secret is not pickled.
        token: A bearer token, in place of both; or a function that returns it.
        ca_file: The certificates of the authorities to trust; None for those of the system.
        certificate_file: The certificate of this client, where the registry asks for one.
        key_file: Its key, if that is in a file of its own.
        timeout: The longest time of an answer, in seconds.

    Raises:
        OptionError: If an option is malformed, or a secret would be sent over plain http.
    """

    framing: ClassVar[str] = "confluent"

    url: str
    username: str | None = field(default=None, kw_only=True)
    password: str | Callable[[], str] | None = field(default=None, repr=False, kw_only=True)
    token: str | Callable[[], str] | None = field(default=None, repr=False, kw_only=True)
    ca_file: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    certificate_file: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    key_file: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    timeout: float = field(default=10.0, kw_only=True)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url if isinstance(self.url, str) else "")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise OptionError(Option("url", ...), " must be like 'https://registry:8081'")
        if parts.username is not None or parts.password is not None:
            sentence = "{url} has a password in it: pass {username} and {password}"
            raise OptionError(Sentence.of(sentence))
        check_files(self, "ca_file", "certificate_file", "key_file")
        for name in _SECRETS:
            if not isinstance(value := getattr(self, name), str | None):
                kind = "text, or a function that returns it"
                check_function(name, value, kind, arguments=0, is_secret=True)
        if isinstance(self.token, str):
            _check_token(self.token)
        if (self.username is None) != (self.password is None):
            raise OptionError("username and password belong together: pass both, or none")
        if self.token is not None and self.username is not None:
            raise OptionError("a registry gets a token, or a username and a password, not both")
        secret = self.token is not None or self.password is not None
        if secret and parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost"}:
            raise OptionError("a password or a token needs https")
        check_seconds("timeout", self.timeout)

    def __reduce__(self) -> tuple[Callable[[], SchemaRegistry], tuple[()]]:
        for name in _SECRETS:
            if isinstance(getattr(self, name), str):
                raise OptionError(
                    f"a registry is sent to another process, and its {name} is not pickled: pass a "
                    f"function {name}= that returns it there, such as from the environment"
                )
        options = {each.name: getattr(self, each.name) for each in fields(self)}
        return partial(SchemaRegistry, **options), ()

    def __str__(self) -> str:
        """Return the URL without a query, which could have a secret."""
        parts = urllib.parse.urlsplit(self.url)
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))

    def _latest(self, subject: str) -> Schemas | None:
        path = f"/subjects/{_quoted(subject)}/versions"
        answer = self._get(f"{path}/latest")
        if answer is not None and answer.get("schemaType") == "PROTOBUF":
            answer = self._get(f"{path}/{answer.get('version', 'latest')}{_SERIALIZED}")
        return None if answer is None else self._schemas(answer)

    def _find(
        self, subject: str, text: str, about: dict[str, Any], *, register: bool, guid: bool
    ) -> int | str | None:
        path = f"/subjects/{_quoted(subject)}" + ("/versions" if register else "")
        # Old registries know Avro alone, and no words about it.
        more = {} if about["schemaType"] == "AVRO" and not about["references"] else about
        answer = self._get(path, "id", {"schema": text} | more)
        if answer is None or not guid:
            return None if answer is None else int(answer["id"])
        if not isinstance(found := answer.get("guid"), str):
            raise OptionError("the registry has no GUIDs of schemas: leave out ", Option("guid"))
        return found

    def _ask(self, number: Id) -> Found:
        path = f"/schemas/{'guids' if isinstance(number, UUID) else 'ids'}/{number}"
        answer = self._get(path)
        if answer is None:
            return Found.nothing(f"the registry has no schema {number}")
        kind = answer.get("schemaType", "AVRO")
        if kind == "PROTOBUF":
            answer = self._get(f"{path}{_SERIALIZED}") or answer
        return Found(self._schemas(answer), kind)

    def _schemas(self, answer: dict[str, Any]) -> Schemas:
        """Return a schema behind those that it refers to, each once."""
        found: dict[tuple[str, int], str] = {}
        self._add_references(answer, found)
        return (*found.values(), str(answer["schema"]))

    def _add_references(self, answer: dict[str, Any], found: dict[tuple[str, int], str]) -> None:
        references = answer.get("references") or []
        for each in references if isinstance(references, list) else [references]:
            try:
                subject, version = place = str(each["subject"]), int(each["version"])
            except (KeyError, TypeError, ValueError) as error:
                raise RetryLaterError(
                    f"the schema registry answers with a bad reference, at {self}: {_NO_REGISTRY}"
                ) from error
            if place in found:
                continue
            if len(found) >= _MOST_REFERENCES:
                raise OptionError(f"a schema refers to more than {_MOST_REFERENCES} others")
            is_protobuf = answer.get("schemaType") == "PROTOBUF"
            more = _SERIALIZED if is_protobuf else ""
            other = self._get(f"/subjects/{_quoted(subject)}/versions/{version}{more}")
            if other is None:
                raise RetryLaterError(
                    f"the registry has no version {version} of {subject}, to which a schema "
                    f"refers: register it again at {self}"
                )
            self._add_references(other, found)
            text = str(other["schema"])
            found[place] = _named(text, str(each.get("name"))) if is_protobuf else text

    def _get(self, path: str, wanted: str = "schema", body: Any = None) -> dict[str, Any] | None:
        """Return an answer, which has what is wanted; None where there is nothing."""
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {_check_token(_loaded('token', self.token))}"
        elif self.username is not None:
            password = _loaded("password", self.password)
            pair = base64.b64encode(f"{self.username}:{password}".encode())
            headers["Authorization"] = f"Basic {pair.decode()}"
        if body is not None:
            headers["Content-Type"] = "application/vnd.schemaregistry.v1+json"
        data = None if body is None else json.dumps(body).encode()
        # The scheme is http or https.
        request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)  # noqa: S310
        try:
            opener = _opener(self)
        except OSError as error:
            raise OptionError(
                "the certificates for the registry cannot be used: ", error
            ) from error
        try:
            with opener.open(request, timeout=self.timeout) as response:
                answer = json.loads(response.read(_LARGEST_ANSWER))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND and _says_that_there_is_none(error):
                    return None
            if body is not None and error.code in _REFUSED:
                raise OptionError(
                    f"the registry {self} refuses the schema ({error.code}): it is none, or does "
                    "not go with others of the subject"
                ) from error
            raise RetryLaterError(
                f"the schema registry answers {error.code} at {self}: ", _remedy(error.code)
            ) from error
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            _opener.cache_clear()  # certificates may have been renewed
            raise RetryLaterError(
                f"the schema registry does not answer at {self}: {_cause(error)}; start it, or "
                "correct its URL or the network"
            ) from error
        kind = str if wanted == "schema" else int
        if not isinstance(answer, dict) or not isinstance(answer.get(wanted), kind):
            raise RetryLaterError(
                f"the schema registry answers without a {wanted} at {self}: {_NO_REGISTRY}"
            )
        return answer


@lru_cache(maxsize=64)
def _opener(registry: SchemaRegistry) -> urllib.request.OpenerDirector:
    """Return what connects to a registry; over http it goes past proxies, which see secrets."""
    context = ssl.create_default_context(cafile=registry.ca_file)
    if registry.certificate_file is not None:
        context.load_cert_chain(registry.certificate_file, registry.key_file)
    handlers = [urllib.request.HTTPSHandler(context=context), _NoRedirects()]
    if urllib.parse.urlsplit(registry.url).scheme == "http":
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def _loaded(name: str, secret: str | Callable[[], str] | None) -> str:
    """Return a secret; call the function where it is one."""
    try:
        value = secret() if callable(secret) else secret
    except BaseException as error:
        if is_interrupt(error) or isinstance(error, FanOutError):
            raise
        raise OptionError(f"the function {name}= raised {type(error).__name__}") from error
    if not isinstance(value, str):
        raise OptionError(f"the function {name}= must return text, not {type(value).__name__}")
    return value


def _check_token(token: str) -> str:
    if _TOKEN.fullmatch(token) is None:
        raise OptionError(Option("token"), " must be printable ASCII, without spaces")
    return token


def _remedy(code: int) -> Sentence:
    """Say what to do about an answer that is an error."""
    if code in _NOT_ALLOWED:
        return _ACCOUNT
    if code in _PASSING - {_NOT_FOUND} or code >= _ERRORS_OF_SERVERS:
        return Sentence("it may start or have too much to do; see its log")
    return Sentence(_NO_REGISTRY)


def _cause(error: Exception) -> str:
    match error:
        case urllib.error.URLError(reason=BaseException() as reason):
            return text_of(reason)
        case OSError() | http.client.HTTPException():
            return text_of(error)
        case _:
            return "what it sends is not JSON"


def _says_that_there_is_none(error: urllib.error.HTTPError) -> bool:
    try:
        answer = json.loads(error.read(_LARGEST_ANSWER))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return False
    code = answer.get("error_code") if isinstance(answer, dict) else None
    return isinstance(code, int) and code // 100 == _CODES_OF_NONE


def schema_texts(given: object) -> Schemas:
    """Return a schema of Avro as its text, whatever a user passes."""
    if isinstance(given, tuple) and given and all(isinstance(each, str) for each in given):
        return given
    if not isinstance(given, str | Mapping | list):
        raise OptionError(Option("schema", given), " must be the text of a schema of Avro, or JSON")
    try:
        return (given if isinstance(given, str) else json.dumps(given),)
    except (TypeError, ValueError) as error:
        raise OptionError(Option("schema"), " must be JSON: ", error) from error


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


def _may_pass(error: BaseException) -> bool:
    """Return whether a registry may answer soon: it starts, or has too much to do."""
    cause = error.__cause__ if isinstance(error, RetryLaterError) else None
    if isinstance(cause, urllib.error.HTTPError):
        return cause.code in _PASSING or cause.code >= _ERRORS_OF_SERVERS
    reason = cause.reason if isinstance(cause, urllib.error.URLError) else cause
    return isinstance(reason, OSError) and not isinstance(reason, ssl.SSLCertVerificationError)


def _log_wait(state: RetryCallState) -> None:
    assert state.outcome is not None, "the call has failed"
    assert state.next_action is not None, "it is made again"
    error, delay = state.outcome.exception(), state.next_action.sleep
    _LOG.warning("the registry is asked again in %.1f s: %s", delay, error)


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_KNOWN: Final[dict[tuple[AnyRegistry, Id], Found]] = {}
_ASKING: Final[dict[tuple[AnyRegistry, Id], Future[Found]]] = {}
