"""Clients of object stores: their options, their credentials, and how long they wait."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store

from fanout.core.error_text import text_of
from fanout.core.sentence import Option, Suggestion
from fanout.errors import OptionError, SetupError
from fanout.landing.storage.object_errors import HIDDEN_SETTINGS, plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from obstore.store import RetryConfig

    from fanout.landing.storage.object_location import ObjectLocation, Service

Store: TypeAlias = AzureStore | GCSStore | S3Store

# A service that is gone is reported within about 30 s: a request ends after 10 s, and no request
# is repeated later than 12 s after it was made first.
_RETRY: RetryConfig = {
    "max_retries": 100,
    "retry_timeout": timedelta(seconds=12),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3)},
}
_REQUEST: Final = {"connect_timeout": "5s", "timeout": "10s"}
# One request uploads up to 64 MiB: 0.6 MB/s is enough.
_UPLOAD: Final = {"connect_timeout": "5s", "timeout": "120s"}

# The options of obstore's ClientConfig that are text. It takes them apart from those of a store.
_CLIENT_OPTIONS: Final = (
    "allow_.*|(connect_|read_)?timeout|default_content_type|http[12]_.*|pool_.*|proxy_.*"
    "|randomize_addresses|root_certificate|user_agent"
)


@final
@dataclass(frozen=True, slots=True)
class _Rules:
    """What differs between the services."""

    store: Any  # the class of obstore
    prefixes: str  # a pattern of what obstore allows before the name of an option
    endpoint: str  # a pattern of its options and environment variables, in lower case
    credentials: str  # options; with one of them the SDK is not asked for any
    variables: str  # environment variables of credentials that obstore knows, and the SDK does not
    provider: Callable[[], Any]  # asks the SDK for credentials, or raises ImportError


def connect(place: ObjectLocation, options: Mapping[str, str]) -> tuple[Store, Store]:
    """Return a client for small requests, and one for uploads, which may take longer.

    The options are those of `open_object_storage`.
    """
    rules = _RULES[place.service]
    config, client = _split(place, options)
    with _option_errors(place.service):
        # obstore gives each option its full name.
        named = rules.store(place.bucket, config=config, client_options=client).config
    if _is_plain_http(rules, named):
        client.setdefault("allow_http", "true")
    provider = _credentials(place.service, named)
    with _option_errors(place.service):
        small, large = (
            rules.store(
                place.bucket,
                prefix=place.prefix or None,
                config=config,
                client_options=timeouts | client,
                retry_config=_RETRY,
                credential_provider=provider,
            )
            for timeouts in (_REQUEST, _UPLOAD)
        )
    return small, large


def _split(
    place: ObjectLocation, options: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the store, and those of its HTTP client."""
    config: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in options.items():
        bare = re.sub(f"^{_RULES[place.service].prefixes}", "", name.lower())
        if re.fullmatch(_CLIENT_OPTIONS, bare):
            client[bare] = value
        else:
            config[name.lower()] = value
    if place.service == "S3" and not {"disable_bulk_delete", "aws_disable_bulk_delete"} & {*config}:
        config["disable_bulk_delete"] = "true"  # every store can delete one object
    if place.account:
        config["account_name"] = place.account
    if place.endpoint:
        config["endpoint"] = place.endpoint
    return config, client


def _is_plain_http(rules: _Rules, config: Mapping[str, Any]) -> bool:
    """Say whether an endpoint of the options or of the environment is one of plain HTTP."""
    endpoints = _matching(rules.endpoint, config) or _matching(rules.endpoint, os.environ)
    for name, endpoint in endpoints.items():
        if not re.match("https?://.", endpoint):
            raise OptionError(f"{name} must begin with https:// or http://: {endpoint!r}")
    return any(endpoint.startswith("http://") for endpoint in endpoints.values())


def _matching(pattern: str, named: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value) for name, value in named.items() if re.fullmatch(pattern, name.lower())
    }


@contextmanager
def _option_errors(service: Service) -> Iterator[None]:
    try:
        yield
    except UnknownConfigurationKeyError as error:
        name = re.search(r"'(.*?)'", str(error))
        raise OptionError(
            f"{name[1] if name else 'one'} is no storage option of {service}; obstore's "
            f"{_RULES[service].store.__name__.replace('Store', 'Config')} and ClientConfig have "
            "their names"
        ) from error
    except (BaseError, ValueError, TypeError) as error:
        raise OptionError(
            f"the storage options of {service} are wrong: {plain_text(error)}"
        ) from error


def _credentials(service: Service, config: Mapping[str, Any]) -> Any:
    """Return what asks the SDK for credentials; None where obstore is to find them by itself."""
    rules = _RULES[service]
    if _matching(rules.credentials, config) or _matching(rules.variables, os.environ):
        return None
    try:
        return rules.provider()
    except ImportError:
        return None  # the SDK is not installed


def _or_give(settings: str) -> Suggestion:
    return Suggestion(", or give ", Option(HIDDEN_SETTINGS, text=settings))


def _boto3() -> Any:
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - not every installation has it
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - the same

    try:
        return Boto3CredentialProvider()
    except (BotoCoreError, ValueError) as error:
        reason = f": {text_of(error)}" if isinstance(error, BotoCoreError) else ""
        raise SetupError(
            f"no AWS credentials were found{reason}; log in or set AWS_PROFILE",
            _or_give("the storage options access_key_id and secret_access_key"),
        ) from error


def _google() -> Any:
    import google.auth  # noqa: PLC0415 - not every installation has it
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415 - the same
    from obstore.auth.google import GoogleCredentialProvider  # noqa: PLC0415 - the same

    try:
        credentials, _ = google.auth.default(
            scopes=["https://www.googleapis.com/auth/devstorage.read_write"]
        )
    except GoogleAuthError as error:
        raise SetupError(
            f"no Google credentials were found: {text_of(error)}; run "
            "`gcloud auth application-default login`",
            _or_give("the storage option service_account"),
        ) from error
    return GoogleCredentialProvider(credentials)


def _azure() -> Any:
    from obstore.auth.azure import AzureCredentialProvider  # noqa: PLC0415 - as above

    return AzureCredentialProvider()


_RULES: Final[dict[Service, _Rules]] = {
    "S3": _Rules(
        S3Store,
        "aws_",
        "(aws_)?endpoint(_url)?(_s3)?",
        "access_key_id|secret_access_key|session_token|skip_signature|web_identity_token_file"
        "|container_credentials_.*|metadata_endpoint|imdsv1_fallback",
        "aws_skip_signature",
        _boto3,
    ),
    "GCS": _Rules(
        GCSStore,
        "google_",
        "(google_)?base_url",
        "service_account.*|bearer_token|application_credentials|skip_signature",
        "google_(service_account.*|bearer_token|skip_signature)",
        _google,
    ),
    "Azure": _Rules(
        AzureStore,
        "azure_(storage_)?",
        "(azure_(storage_)?)?endpoint",
        "account_key|client_(id|secret)|credential_type|sas_key|token|federated_token_file"
        "|msi_.*|object_id|use_azure_cli|use_emulator|skip_signature",
        "azure_storage_(account_key|access_key|master_key|sas_key|sas_token|token|use_emulator)"
        "|azure_skip_signature",
        _azure,
    ),
}
