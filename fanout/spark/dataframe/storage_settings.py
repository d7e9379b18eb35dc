"""Which settings of an object store may be options: Spark shows options to everybody."""

from __future__ import annotations

import difflib
import re
from typing import Final
from urllib.parse import urlsplit

from fanout.errors import OptionError

STORAGE: Final = "storage."
"""How the options begin."""

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
