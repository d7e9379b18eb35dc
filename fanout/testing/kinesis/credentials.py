"""The client settings that lead to an embedded Kinesis, with made-up credentials."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

REGION = "us-east-1"


class ClientSettings(ABC):
    """Return the settings with which clients reach a server."""

    @property
    @abstractmethod
    def endpoint_url(self) -> str:
        """The URL for a client's `endpoint_url`."""

    @property
    @abstractmethod
    def certificate(self) -> Path | None:
        """The file of the certificate that clients have to trust; None without TLS."""

    @property
    def client_options(self) -> dict[str, str]:
        """Keyword arguments for `boto3.client("kinesis", ...)` and its aioboto3 twin.

        They suit a client of DynamoDB as well.
        """
        options = {
            "endpoint_url": self.endpoint_url,
            "region_name": REGION,
            "aws_access_key_id": "testing",
            "aws_secret_access_key": "testing",
        }
        return options | ({"verify": str(self.certificate)} if self.certificate else {})

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make any AWS SDK talk to this server."""
        environment = {
            "AWS_ENDPOINT_URL_KINESIS": self.endpoint_url,
            # The Kinesis Client Library keeps its leases there.
            "AWS_ENDPOINT_URL_DYNAMODB": self.endpoint_url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return environment | ({"AWS_CA_BUNDLE": str(self.certificate)} if self.certificate else {})
