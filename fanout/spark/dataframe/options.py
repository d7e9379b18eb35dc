"""The options of `format("fanout")` that say what is read."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self, final
from urllib.parse import urlsplit

from fanout.errors import OptionError
from fanout.landing.log.landed_log import NO_LIMITS, Limits
from fanout.landing.retention.named_readers import check_reader
from fanout.landing.storage.places import open_files, open_known_storage
from fanout.spark.dataframe.string_options import STORAGE, in_words_of_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.landing.storage.storage import ReadableFiles, Storage

# obstore takes the names with and without these, in any case.
_PREFIX: Final = re.compile("^(aws|google|azure_storage|azure)_")
_SECRET: Final = re.compile("secret|token|password|credential|key|sas|headers")
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


def check_storage_setting(name: str, value: str) -> str:
    """Return the name of a setting that may be an option: in lower case, without `storage.`.

    Raises:
        OptionError: It is a secret, holds one, or is unknown.
    """
    bare = _PREFIX.sub("", name)
    if bare not in _SHOWN:
        if _SECRET.search(name):
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
