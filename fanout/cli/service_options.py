"""The options by which commands reach Kinesis and Kafka."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import typer

from fanout._secret_variables import (
    REGISTRY_SECRETS,
    SECRET_VARIABLES,
    secrets_of_environment,
)
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanout.decoding.decoder import Decoder
    from fanout.kafka.client_properties import ClientProperties
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.security import Security
    from fanout.kinesis.options import KinesisOptions
    from fanout.kinesis.queue.options import QueueOptions
    from fanout.kinesis.source import KinesisSource

_PANEL: Final = "Connection to Kafka"

_SECURITY: Final = (
    "protocol",
    "mechanism",
    "username",
    "ca_file",
    "certificate_file",
    "key_file",
)


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

    def queue(self, stream: str, queue: str) -> QueueOptions:
        """Return the options of a queue of a stream."""
        from fanout.kinesis.queue.options import QueueOptions  # noqa: PLC0415 - as above

        return QueueOptions(stream=stream, queue=queue, **asdict(self))

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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of a command that reach a cluster; typer shows each with its help."""

    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers",
            "--bootstrap-server",
            envvar="KAFKA_BOOTSTRAP_SERVERS",
            help="Brokers to begin with, as host:port, several by commas.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    command_config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="KAFKA_COMMAND_CONFIG",
            help="A properties file as Kafka's own tools take it, with security.protocol, "
            "sasl.mechanism, sasl.jaas.config, ssl.truststore.location and so on; stores are PEM. "
            "The other options come before it; its passwords come before those of the environment.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    protocol: Annotated[
        str | None,
        typer.Option(
            help="SASL_SSL, SSL, SASL_PLAINTEXT or PLAINTEXT. Left out, it is SASL_SSL with "
            "--username or AWS_MSK_IAM, SSL with --ca-file or --certificate-file, and PLAINTEXT "
            "otherwise.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="SCRAM-SHA-512, which is the default, SCRAM-SHA-256, PLAIN, AWS_MSK_IAM, which "
            "uses the credentials of AWS, or OAUTHBEARER, whose token is in the environment "
            f"variable {SECRET_VARIABLES['token']}.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    username: Annotated[
        str | None,
        typer.Option(
            help="The user; the environment variable "
            f"{SECRET_VARIABLES['password']} holds the password.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    ca_file: Annotated[
        str | None,
        typer.Option(
            help="The certificates (PEM) that sign those of the brokers; the system's otherwise.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    certificate_file: Annotated[
        str | None,
        typer.Option(
            help="The client certificate (PEM), where brokers ask for one.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    key_file: Annotated[
        str | None,
        typer.Option(
            help="Its key (PEM), if it is in another file; the environment variable "
            f"{SECRET_VARIABLES['key_password']} holds the password of an encrypted key.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow plaintext to brokers on other machines.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    connect_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="How long a broker may take to answer first.",
            rich_help_panel=_PANEL,
        ),
    ] = 10.0

    def cluster(self, *, travels: bool = False) -> Cluster:
        """Return the cluster that the options, the environment and the file describe. It blocks.

        One that `travels` to other processes reads its security again there, with the secrets.
        """
        from fanout.kafka.cluster import Cluster  # noqa: PLC0415 - it loads Kafka's library

        properties = self._properties()
        if properties.bootstrap_servers is None:
            raise OptionError(
                "pass --bootstrap-servers, or set bootstrap.servers in the file of --command-config"
            )
        return Cluster(
            properties.bootstrap_servers,
            security=self.security if travels else properties.security,
            connect_timeout=self.connect_timeout,
        )

    def security(self) -> Security:
        """Return the security that the options, the environment and the file describe."""
        return self._properties().security

    def _properties(self) -> ClientProperties:
        # Help and usage errors do not load Kafka's library.
        from fanout.kafka.client_properties import (  # noqa: PLC0415
            read_client_properties,
        )

        given = {name: value for name in _SECURITY if (value := getattr(self, name)) is not None}
        return read_client_properties(
            self.command_config,
            servers=self.bootstrap_servers,
            insecure=self.insecure,
            options=given,
            secrets=secrets_of_environment(),
        )


def typed(text: str, *flags: str, metavar: str | None = None) -> Any:
    """Return an option about typed records, with its help."""
    return typer.Option(
        *flags, metavar=metavar, help=text, show_default=False, rich_help_panel="Typed records"
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """The options of a command that turn records into columns; typer shows each with its help."""

    decode: Annotated[
        str | None, typed("Turn what is in records into columns.", metavar="json|avro|protobuf")
    ] = None
    schema: Annotated[
        str | None,
        typed(
            "The schema to read with: 'id BIGINT, name STRING' or a JSON Schema for json, an .avsc "
            "file for avro, a descriptor set for protobuf.",
            metavar="FILE|TEXT",
        ),
    ] = None
    registry: Annotated[
        str | None,
        typed(
            "The registry that has the schemas of avro or protobuf; a bearer token is in the "
            f"environment variable {REGISTRY_SECRETS['registry_token']}.",
            metavar="URL",
        ),
    ] = None
    message: Annotated[
        str | None,
        typed("The full name of the message of protobuf, where the schema has several."),
    ] = None
    subject: Annotated[
        str | None,
        typed(
            "Whose newest schema in the registry is read with, where --schema is left out; "
            "TOPIC-value for one topic of Kafka."
        ),
    ] = None
    registry_username: Annotated[
        str | None,
        typed(
            "The user of the registry, or the key of an API; the environment variable "
            f"{REGISTRY_SECRETS['registry_password']} holds the password."
        ),
    ] = None
    registry_ca_file: Annotated[
        str | None, typed("Certificates (PEM) that sign that of the registry.")
    ] = None
    registry_certificate_file: Annotated[
        str | None, typed("The client certificate (PEM), where the registry asks for one.")
    ] = None
    registry_key_file: Annotated[str | None, typed("Its key (PEM), if it is in another file.")] = (
        None
    )
    key_decode: Annotated[
        str | None,
        typed("Turn what is in keys of Kafka into columns, too.", metavar="json|avro|protobuf"),
    ] = None
    key_schema: Annotated[
        str | None, typed("The schema to read keys with, as --schema.", metavar="FILE|TEXT")
    ] = None
    key_message: Annotated[str | None, typed("The full name of their message of protobuf.")] = None
    key_subject: Annotated[
        str | None,
        typed("Whose newest schema keys are read with; TOPIC-key for one topic of Kafka."),
    ] = None

    def decoder(
        self,
        topics: Sequence[str],
        columns: Sequence[str] = (),
        into: str | None = None,
        stored: Callable[[], str] = str,
        *,
        key_into: str | None = None,
    ) -> Decoder | None:
        """Return the decoder, if any; see `DecodeOptions`. It may ask the registry, and blocks."""
        if self == type(self)() and not columns and into is None and key_into is None:
            return None
        # Help and usage errors do not load Arrow.
        from fanout.decoding.options import DecodeOptions  # noqa: PLC0415

        given = DecodeOptions(**asdict(self), columns=columns, into=into, key_into=key_into)
        return given.decoder(topics, stored)
