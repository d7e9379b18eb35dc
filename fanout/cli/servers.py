"""The commands `fanout kinesis-server` and `fanout kafka-broker`: servers for development."""

from __future__ import annotations

import re
import shlex
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.cli.common import Json, print_json
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LAST_PORT: Final = 65535
_MOST: Final = 1000  # shards or partitions on one machine; more are a typing error
_NAME: Final = re.compile(r"([A-Za-z0-9._-]{1,128})(?:=([0-9]{1,4}))?")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_MOST_NODES: Final = 9
# The broker of tests has shorter locks.
_SETTINGS: Final = {"group.share.record.lock.duration.ms": "30000"}


@fanout_command("kinesis-server")
def kinesis_server(
    *,
    port: Annotated[
        int,
        typer.Option(min=0, max=_LAST_PORT, help="The port on 127.0.0.1; 0 takes a free one."),
    ] = 4567,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHARDS",
            help="A stream to create, such as orders=4; 1 shard if left out; can be repeated.",
        ),
    ] = None,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Speak TLS too, with a new certificate that clients trust."),
    ] = False,
    json: Json = False,
) -> None:
    """Run an embedded Kinesis for development, until Ctrl-C or SIGTERM.

    It keeps the limits and times of the service, enhanced fan-out included, and holds all records
    in memory. It prints the environment variables by which every AWS SDK on this machine reaches
    it; the credentials are made up.

    The exit code is 0 when it was told to end.
    """
    streams = _counts(stream, "stream")
    _end_once()
    from fanout.testing.kinesis.server import KinesisServer  # noqa: PLC0415 - it loads moto
    from fanout.testing.ports import check_port  # noqa: PLC0415 - for help

    check_port(port)
    with KinesisServer(port=port, tls=tls) as server:
        for name, shards in streams.items():
            server.create_stream(name, shards)
        address = {"endpoint_url": server.endpoint_url}
        _serve("Kinesis", address, server.environment, {"streams": streams}, json=json)


@fanout_command("kafka-broker")
def kafka_broker(
    *,
    port: Annotated[
        int,
        typer.Option(min=0, max=_LAST_PORT, help="The port on 127.0.0.1; 0 takes a free one."),
    ] = 9092,
    nodes: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MOST_NODES,
            help="How many nodes there are; the next one has the next port. Each takes 200 MB.",
        ),
    ] = 1,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PARTITIONS",
            help="A topic to create, such as orders=4; 1 partition if left out; can be repeated.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run Apache Kafka for development, one node or several, until Ctrl-C or SIGTERM.

    It has the protocol PLAINTEXT, transactions and share groups. Topics have up to three replicas.
    The data is in temporary directories, which are removed at the end. The first start downloads
    Kafka. It prints the environment variable by which the commands of fanout reach it, and the
    process of each node, so that you can kill one: kill -9, or kill -STOP for one that hangs.

    The exit code is 0 when it was told to end, and 1 if all nodes ended by themselves.
    """
    topics = _counts(topic, "topic")
    _end_once()
    from fanout.testing.kafka.cluster import KafkaCluster  # noqa: PLC0415 - confluent_kafka

    with KafkaCluster(nodes=nodes, port=port, settings=_SETTINGS) as cluster:
        for name, partitions in topics.items():
            cluster.create_topic(name, partitions)
        numbers = range(1, nodes + 1)
        address = {"bootstrap_servers": cluster.bootstrap_servers}
        environment = {"KAFKA_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
        processes = {f"{number}": cluster.process_id(number) for number in numbers}
        _serve(
            "Kafka",
            address,
            environment,
            {"topics": topics, "processes": processes},
            json=json,
            comments=[f"# Node {n} is process {pid}." for n, pid in processes.items() if nodes > 1],
            runs=lambda: any(cluster.process_id(number) is not None for number in numbers),
        )


def _counts(given: list[str] | None, option: str) -> dict[str, int]:
    """Read NAME=COUNT of each; without a count it is 1."""
    counts: dict[str, int] = {}
    for text in given or ():
        match = _NAME.fullmatch(text)
        if match is None or not 1 <= int(match[2] or 1) <= _MOST:
            raise OptionError(
                f"--{option} {shlex.quote(text)} is not a name and a number from 1 to {_MOST}, "
                f"such as orders=4"
            )
        if match[1] in counts:
            raise OptionError(f"--{option} names {match[1]} twice")
        counts[match[1]] = int(match[2] or 1)
    return counts


def _end_once() -> None:
    """Let the first Ctrl-C or SIGTERM raise KeyboardInterrupt; later ones disturb no clean-up."""

    def end(*_: object) -> NoReturn:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, end)


def _serve(
    name: str,
    address: Mapping[str, str],
    environment: Mapping[str, str],
    holds: Mapping[str, Any],
    *,
    json: bool,
    comments: Sequence[str] = (),
    runs: Callable[[], bool] = lambda: True,
) -> None:
    """Print how to reach a server, and wait until the command is told to end."""
    try:
        if json:
            print_json({**address, "environment": environment, **holds})
        else:
            first = f"# {name} runs at {' '.join(address.values())}; Ctrl-C ends it."
            exports = [f"export {variable}={value}" for variable, value in environment.items()]
            typer.echo("\n".join([first, *comments, *exports]))
        while runs():
            # A signal ends it at once; only a server that ends by itself is seen up to 1 s later.
            time.sleep(1)
    except KeyboardInterrupt:
        return
    typer.echo(
        f"fanout: {name} ended by itself, and its records are gone; start it again", err=True
    )
    raise typer.Exit(ExitCode.FOUND)
