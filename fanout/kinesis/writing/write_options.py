"""The options of everything that writes to Kinesis: the writer and the Spark sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fanout.core.option_checks import at_least_one, check_seconds, check_strings, whole
from fanout.core.statistics import Origin
from fanout.errors import OptionError
from fanout.kinesis.aws.api import NAME, STREAM_ARN
from fanout.kinesis.aws.endpoint import check_endpoint
from fanout.kinesis.aws.role import AssumedRole

if TYPE_CHECKING:
    from collections.abc import Mapping

# The most to which UpdateMaxRecordSize raises the limit of a stream.
_LARGEST_RECORD: Final = 10 * 1024 * 1024
MAX_BYTES_IN_FLIGHT: Final = 32 * 1024 * 1024
DELIVERY_TIMEOUT: Final = 120.0

_STRINGS: Final = ("region", "endpoint_url", "role_arn", "external_id", "role_session_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisWriteOptions:
    """The options of what writes to Kinesis: `fanout.kinesis.open_writer` explains them."""

    stream: str
    aggregate: bool = False
    max_record_bytes: int | None = None
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT
    delivery_timeout: float = DELIVERY_TIMEOUT
    region: str | None = None
    endpoint_url: str | None = None
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    role_session_name: str | None = None
    insecure: bool = False

    def check_writing(self) -> None:
        """Check the options of this class."""
        if not isinstance(self.stream, str) or not (
            (arn := STREAM_ARN.fullmatch(self.stream)) or NAME.fullmatch(self.stream)
        ):
            raise OptionError(f"stream={self.stream!r} is neither a stream's name nor its ARN")
        check_strings(self, *_STRINGS)
        if arn is not None and self.region not in {None, arn["region"]}:
            raise OptionError(f"region={self.region!r} contradicts the ARN {self.stream}")
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url, insecure=self.insecure)
        most = self.max_record_bytes
        if most is not None and not 1 <= whole("max_record_bytes", most) <= _LARGEST_RECORD:
            raise OptionError(f"max_record_bytes={most} must be from 1 to {_LARGEST_RECORD}")
        at_least_one("max_bytes_in_flight", self.max_bytes_in_flight)
        check_seconds("delivery_timeout", self.delivery_timeout)
        _ = self.role  # checks its options

    @property
    def role(self) -> AssumedRole | None:
        """The role to assume."""
        return AssumedRole.parse(self.role_arn, self.external_id, self.role_session_name)

    @property
    def client_options(self) -> Mapping[str, object]:
        """The options of `open_kinesis_client`."""
        arn = STREAM_ARN.fullmatch(self.stream)
        return {
            "stream": self.stream,
            "region": arn["region"] if arn is not None else self.region,
            "endpoint_url": self.endpoint_url,
            "role": self.role,
            "insecure": self.insecure,
        }

    @property
    def origin(self) -> Origin:
        """The stream, as statistics name it."""
        arn = STREAM_ARN.fullmatch(self.stream)
        return Origin("aws_kinesis", self.stream if arn is None else arn["stream"])
