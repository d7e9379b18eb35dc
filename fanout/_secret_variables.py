"""Where secrets come from that are no options: those show in lists of processes and in plans."""

from __future__ import annotations

import os
from typing import Final

SECRET_VARIABLES: Final = {
    "password": "KAFKA_PASSWORD",
    "key_password": "KAFKA_KEY_PASSWORD",
    "token": "KAFKA_TOKEN",
}
"""The environment variables, by the option of `fanout.kafka.Security`."""

REGISTRY_SECRETS: Final = {
    "registry_password": "SCHEMA_REGISTRY_PASSWORD",
    "registry_token": "SCHEMA_REGISTRY_TOKEN",
}
"""The environment variables of a schema registry, by the option of `DecodeOptions`."""


def secrets_of_environment() -> dict[str, str]:
    """Return the secrets in the environment of this process, by the option of `Security`."""
    return {name: os.environ.get(variable, "") for name, variable in SECRET_VARIABLES.items()}
