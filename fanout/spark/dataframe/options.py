"""The options of `format("fanout")`: how they are read, and which say what is read."""

from __future__ import annotations

import difflib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, final
from urllib.parse import urlsplit

from fanout.core.sentence import Option, Sentence
from fanout.errors import FanOutError, OptionError
from fanout.landing.log.landed_log import NO_LIMITS, Limits
from fanout.landing.retention import check_reader
from fanout.landing.storage.object_errors import HIDDEN_SETTINGS
from fanout.landing.storage.opening import open_files, open_known_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fanout.landing.storage.storage import ReadableFiles, Storage

STORAGE: Final = "storage."
"""How options begin that are settings of an object store."""

_LANDING_WORDS: Final = {
    "location": "landing",
    "storage_options": f"{STORAGE}*",
    "new_columns": "newColumns",
}
_NO_WORDS: Final[Mapping[str, str]] = MappingProxyType({})
_SECRET_OPTION: Final = re.compile(
    r"secret|password|credential|access_?key|jaas|oauthbearer|key(store)?\.key$|"
    r"(session|sas|auth|security)_?token",
)
_FLAGS: Final = {"true": True, "false": False}
# obstore takes the names with and without these, in any case.
_PREFIX: Final = re.compile("^(aws|google|azure_storage|azure)_")
_SECRET_SETTING: Final = re.compile("secret|token|password|credential|key|sas|headers")
# The names of obstore's ClientConfig, S3Config, GCSConfig and AzureConfig.
_CLIENT: Final = (
    "allow_http allow_invalid_certificates connect_timeout default_content_type http1_only "
    "http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle http2_only "
    "pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url "
    "randomize_addresses read_timeout root_certificate timeout user_agent"
)
_S3: Final = (
    "checksum_algorithm conditional_put container_authorization_token_file "
    "container_credentials_full_uri container_credentials_relative_uri copy_if_not_exists "
    "default_region disable_bulk_delete disable_tagging endpoint endpoint_url endpoint_url_s3 "
    "endpoint_url_sts imdsv1_fallback metadata_endpoint region request_payer role_arn "
    "role_session_name s3_express server_side_encryption skip_signature sse_bucket_key_enabled "
    "sse_kms_key_id sts_endpoint unsigned_payload virtual_hosted_style_request "
    "web_identity_token_file"
)
_GCS: Final = "application_credentials base_url service_account service_account_path"
_AZURE: Final = (
    "account_name authority_host authority_id client_id credential_type fabric_cluster_identifier "
    "fabric_token_service_url fabric_workload_host federated_token_file identity_endpoint "
    "msi_endpoint msi_resource_id object_id tenant_id use_azure_cli use_emulator "
    "use_fabric_endpoint"
)
_SHOWN: Final = frozenset(f"{_CLIENT} {_S3} {_GCS} {_AZURE}".split())
_STREAM: Final = ("reader", "maxRecordsPerTrigger", "maxBytesPerTrigger")
_BATCH: Final = ("stop",)
# A query reads its files soon, and once. It is slower with zstd, most where payloads do not shrink.
COMPRESSION: Final = "lz4"
"""What the files are compressed with that a query lands for itself."""

READ_OPTIONS: Final = ("landing", "start", "failOnDataLoss", *_STREAM, *_BATCH)


@contextmanager
def in_words_of_options(words: Mapping[str, str] = _NO_WORDS) -> Iterator[None]:
    """Write what a block raises in the words of options.

    `words` has those for the keywords of the source; it is empty where the user gave it as a value.
    """
    try:
        yield
    except FanOutError as error:
        error.args = (Sentence(error).in_words(lambda option: _word(option, words)),)
        raise


def _word(option: Option, words: Mapping[str, str]) -> str | None:
    name = (_LANDING_WORDS | dict(words)).get(option.name)
    if option.name == HIDDEN_SETTINGS:
        return None  # Spark shows options to everybody
    if option.name.startswith(STORAGE):
        return f"the option {option.name}"
    if words and option == "on_data_loss='earliest'":
        return "failOnDataLoss=false"
    if name is None:
        return option
    return name if option.value is None else f"{name}={option.value}"


@final
class StringOptions:
    """The options of one DataFrame, by name in any case; Spark gives names in lower case.

    Each method raises OptionError for a value that is not what it returns.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """Return the value of an option, which must not be empty; None if it is not given."""
        value = self._options.get(name.lower())
        if value is not None and not value.strip():
            raise OptionError(f"{name} is empty; give it a value, or leave it out")
        return value

    def required(self, name: str, why: str) -> str:
        """Return the value of an option that must be given; `why` is a clause, for the message."""
        value = self.text(name)
        if value is None:
            raise OptionError(f"{name} is missing: {why}")
        return value

    def word(self, name: str, *words: str) -> str | None:
        """Return the one of several words that an option has, in any case."""
        value = self.text(name)
        if value is None:
            return None
        found = next((word for word in words if word.lower() == value.strip().lower()), None)
        if found is None:
            raise OptionError(f"{name}={value!r} must be {' or '.join(words)}")
        return found

    def flag(self, name: str) -> bool | None:
        """Return an option that is true or false."""
        word = self.word(name, *_FLAGS)
        return None if word is None else _FLAGS[word]

    def number(self, name: str) -> int | None:
        """Return an option that is a whole number, 0 or more."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise OptionError(f"{name}={value!r} must be a whole number")
        return int(value)

    def seconds(self, name: str) -> float | None:
        """Return an option that is a number of seconds."""
        value = self.text(name)
        try:
            return None if value is None else float(value)
        except ValueError:
            raise OptionError(f"{name}={value!r} must be a number of seconds") from None

    def json_object(self, name: str, like: str) -> dict[str, Any] | None:
        """Return an option that is a JSON object; `like` is an example, for messages."""
        value = self.text(name)
        if value is None:
            return None
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise OptionError(f"{name}={value!r} must be JSON like {like}")
        return found

    def refuse_others(
        self, known: Iterable[str], refused: Mapping[str, str], secrets_go: str
    ) -> None:
        """Check that every option is known. No message has a value, which may be a secret.

        Args:
            known: The names of the options that there are.
            refused: Why an option that people know from elsewhere is refused, a clause, by its name
                in lower case.
            secrets_go: Where secrets are given instead, a clause.
        """
        names = {name.lower(): name for name in known}
        for given in self._options.keys() - names.keys():
            if given in refused:
                raise OptionError(f"the option {given!r} is refused: {refused[given]}")
            if _SECRET_OPTION.search(given):
                raise OptionError(
                    f"the option {given!r} is a secret, and Spark shows options in its plans: "
                    f"{secrets_go}"
                )
            close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
            hint = f"; did you mean {names[close[0]]!r}?" if close else ""
            raise OptionError(f"the option {given!r} is not known{hint}")


def check_storage_setting(name: str, value: str) -> str:
    """Return the name of a setting that may be an option: in lower case, without `storage.`.

    Raises:
        OptionError: It is a secret, holds one, or is unknown.
    """
    bare = _PREFIX.sub("", name)
    if bare not in _SHOWN:
        if _SECRET_SETTING.search(name):
            raise OptionError(
                f"{STORAGE}{name} would show a secret in Spark's plans; set it in the environment "
                f"of the driver and the executors, as the service's SDK finds it"
            )
        near = difflib.get_close_matches(bare, _SHOWN, n=1)
        hint = f"did you mean {STORAGE}{near[0]}?" if near else "leave it out"
        raise OptionError(f"{STORAGE}{name} is no setting that can be an option; {hint}")
    if _has_secret(value):
        raise OptionError(
            f"{STORAGE}{name} has a user, a password or a key, which Spark would show in its "
            f"plans; leave it out of the value"
        )
    return name


def _has_secret(value: str) -> bool:
    """Say whether a value is a URL with a user, or a key in place of its file."""
    if "://" not in value:
        return value.lstrip().startswith("{") or "PRIVATE KEY" in value
    try:
        return "@" in urlsplit(value).netloc
    except ValueError:
        return "@" in value


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read of a landing."""

    landing: str  # where it is
    start: int | str = "earliest"  # "earliest", "latest" or the number of the first entry to read
    stop: int | str = "latest"  # the entry before which a batch read ends: "latest" or a number
    reader: str | None = None  # its name; the landing keeps the entries of a reader that has one
    limits: Limits = NO_LIMITS  # the most that a micro-batch takes
    # Whether entries that were deleted before they were read are an error.
    fail_on_data_loss: bool = True
    storage: Mapping[str, str] = field(default_factory=dict)  # settings of the object store

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> Self:
        """Check options by name, in any case; `streaming` is None where that is not known yet.

        Raises:
            OptionError: One is unknown, missing or malformed, or holds a secret.
        """
        known = {name.lower(): name for name in READ_OPTIONS}
        found, storage = {}, {}
        for name, value in options.items():
            lower = name.lower()
            if lower.startswith(STORAGE):
                storage[check_storage_setting(lower.removeprefix(STORAGE), value)] = value
            elif lower in known:
                found[known[lower]] = value
            else:
                raise _unknown(lower)
        if streaming is not None:
            _check_kind(found, streaming=streaming)
        if not found.get("landing"):
            raise OptionError(
                "the option landing is missing: give the location of a landing, such as "
                '.option("landing", "s3://lake/orders")'
            )
        reader = found.get("reader")
        return cls(
            landing=found["landing"],
            start=_entry("start", found.get("start", "earliest"), "earliest", "latest"),
            stop=_entry("stop", found.get("stop", "latest"), "latest"),
            reader=None if reader is None else check_reader(reader),
            limits=Limits(
                _count(found, "maxRecordsPerTrigger"), _count(found, "maxBytesPerTrigger")
            ),
            fail_on_data_loss=_flag("failOnDataLoss", found.get("failOnDataLoss", "true")),
            storage=storage,
        )

    def open(self) -> ReadableFiles:
        """Open the landing for reading; see `open_files`."""
        with in_words_of_options():
            return open_files(self.landing, self.storage)

    def open_storage(self) -> Storage:
        """Open the landing for a named reader, which writes; see `open_known_storage`."""
        with in_words_of_options():
            return open_known_storage(self.landing, self.storage)


def _check_kind(found: Mapping[str, str], *, streaming: bool) -> None:
    for name in _BATCH if streaming else _STREAM:
        if name in found:
            used, other = ("read", "readStream") if streaming else ("readStream", "read")
            raise OptionError(f"{name} is an option of spark.{used}, not of spark.{other}")


def _unknown(name: str) -> OptionError:
    names = {one.lower(): one for one in READ_OPTIONS}
    near = difflib.get_close_matches(name, names, n=1)
    hint = (
        f"did you mean {names[near[0]]}?"
        if near
        else f"there are {', '.join(READ_OPTIONS)}, and {STORAGE}*"
    )
    if name == "path":
        hint = "give the location as the option landing"
    return OptionError(f'{name} is no option of format("fanout"); {hint}')


def _entry(name: str, value: str, *words: str) -> int | str:
    if value.lower() in words:
        return value.lower()
    if re.fullmatch(r"[0-9]{1,12}", value):
        return int(value)
    raise OptionError(f"{name}={value!r} must be {', '.join(words)} or the number of an entry")


def _count(found: Mapping[str, str], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", value) or int(value) < 1:
        raise OptionError(f"{name}={value!r} must be a whole number, at least 1")
    return int(value)


def _flag(name: str, value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise OptionError(f"{name}={value!r} must be true or false")
    return value.lower() == "true"
