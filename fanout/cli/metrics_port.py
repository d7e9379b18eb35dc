"""The option `--metrics-port`: serve the metrics of a command for Prometheus."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from fanout.core.sentence import Option
from fanout.errors import OptionError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.core.statistics import Statistics

MetricsPort = Annotated[
    str | None,
    typer.Option(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="Serve metrics for Prometheus at /metrics of this port, on all addresses of this "
        "machine or on one of them, such as 127.0.0.1:9464; 0 takes a free port.",
        show_default=False,
    ),
]

_ADDRESS: Final = re.compile(r"(?:\[?(?P<host>[^\s/\[\]]+)\]?:)?(?P<port>[0-9]{1,5})")
_LAST_PORT: Final = 65535


class _Watchable(Protocol):
    def statistics(self) -> Statistics: ...


@contextmanager
def served_metrics(metrics_port: str | None) -> Iterator[Callable[[_Watchable], None]]:
    """Serve metrics for Prometheus while the block runs, and print where, to stderr.

    The option is a port, or an address and a port; None serves nothing. The function that is
    yielded takes the stream whose metrics are served.
    """
    if metrics_port is None:
        yield lambda _: None
        return
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 - optional
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - optional
    from prometheus_client import start_http_server  # noqa: PLC0415 - optional

    from fanout.metrics import Metrics  # noqa: PLC0415 - optional

    host, port = _parse(metrics_port)
    with ExitStack() as stack:
        provider = MeterProvider([PrometheusMetricReader()])
        stack.callback(provider.shutdown)
        metrics = Metrics(provider)
        try:
            server, thread = start_http_server(port, host)
        except OSError as error:
            raise SetupError(
                Option("metrics_port", metrics_port),
                f" cannot be used: {error.strerror}; pass another one, or 0 for a free one",
            ) from error
        for close in (thread.join, server.server_close, server.shutdown):  # the last one first
            stack.callback(close)

        def watch(stream: _Watchable) -> None:
            metrics.watch(stream)

        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"metrics are at http://{shown}:{server.server_port}/metrics", err=True)
        yield watch


def _parse(metrics_port: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(metrics_port)
    if found is None or int(found["port"]) > _LAST_PORT:
        raise OptionError(
            Option("metrics_port", metrics_port),
            " must be a port, or an address and a port, such as 9464 or 127.0.0.1:9464",
        )
    return found["host"] or "0.0.0.0", int(found["port"])  # noqa: S104 - Prometheus is elsewhere
