"""The options by which every command about Kafka reaches a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, final

import typer

from fanout._kafka_secrets import SECRET_VARIABLES, secrets_of_environment
from fanout.errors import OptionError

if TYPE_CHECKING:
    from fanout.kafka.cluster import Cluster

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

    def cluster(self) -> Cluster:
        """Return the cluster that the options, the environment and the file describe. It blocks."""
        # Help and usage errors do not load Kafka's library.
        from fanout.kafka.client_properties import (  # noqa: PLC0415
            read_client_properties,
        )
        from fanout.kafka.cluster import Cluster  # noqa: PLC0415

        given = {name: value for name in _SECURITY if (value := getattr(self, name)) is not None}
        properties = read_client_properties(
            self.command_config,
            servers=self.bootstrap_servers,
            insecure=self.insecure,
            options=given,
            secrets=secrets_of_environment(),
        )
        if properties.bootstrap_servers is None:
            raise OptionError(
                "pass --bootstrap-servers, or set bootstrap.servers in the file of --command-config"
            )
        return Cluster(
            properties.bootstrap_servers,
            security=properties.security,
            connect_timeout=self.connect_timeout,
        )
