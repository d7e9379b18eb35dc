"""The options by which every command about Kinesis reaches the service."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

if TYPE_CHECKING:
    from fanout.kinesis.options import KinesisOptions
    from fanout.kinesis.source import KinesisSource


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AwsOptions:
    """The options of a command that reach AWS; typer shows each with its help."""

    region: Annotated[str | None, typer.Option(help="The AWS region.")] = None
    endpoint_url: Annotated[
        str | None, typer.Option(help="Another endpoint than the region's.")
    ] = None
    role_arn: Annotated[str | None, typer.Option(help="A role to assume.")] = None
    external_id: Annotated[
        str | None, typer.Option(help="The external id that the role's trust policy asks for.")
    ] = None
    role_session_name: Annotated[
        str | None, typer.Option(help="The name of this reader in the logs of the role's account.")
    ] = None

    def stream(self, stream: str, consumer: str | None = None) -> KinesisOptions:
        """Return the options of streams, separated by commas; they poll without a consumer."""
        # Help and usage errors do not load the AWS SDK.
        from fanout.kinesis.options import KinesisOptions, streams_of  # noqa: PLC0415

        return KinesisOptions(
            stream=streams_of(stream),
            consumer=consumer,
            mode="polling" if consumer is None else "efo",
            **asdict(self),
        )

    def source(self, stream: str, consumer: str | None, **options: Any) -> KinesisSource:
        """Return the source of streams, separated by commas; it polls without a consumer."""
        from fanout.kinesis.options import streams_of  # noqa: PLC0415 - it loads the AWS SDK
        from fanout.kinesis.source import KinesisSource  # noqa: PLC0415 - the same

        return KinesisSource(
            stream=streams_of(stream),
            consumer=consumer,
            mode="polling" if consumer is None else "efo",
            **asdict(self),
            **options,
        )
