"""What the demo needs from the machine, checked before anything is started."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fanout.demo.options import ServiceName
from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("check_environment",)

_KAFKA = {"pyspark": "spark", "aiokafka": "kafka", "confluent_kafka": "testing"}

# The extra that brings each module.
_EXTRAS: Mapping[ServiceName, Mapping[str, str]] = {
    ServiceName.KINESIS: {"pyspark": "spark", "aioboto3": "kinesis", "moto": "testing"},
    ServiceName.KAFKA: _KAFKA,
    ServiceName.KAFKA_SHARE: _KAFKA,
}


def check_environment(source: ServiceName) -> None:
    """Check that everything that the demo starts is installed.

    Args:
        source: The service that it runs on.

    Raises:
        SetupError: If an extra is missing, or there is no Java for Spark.
    """
    missing = {extra for module, extra in _EXTRAS[source].items() if find_spec(module) is None}
    if missing:
        extras = ",".join(sorted(missing))
        raise SetupError(f"the demo needs more of fanout: pip install 'fanout-streams[{extras}]'")
    # It imports pyspark, which is known to be there only now.
    from fanout.spark.session import require_java  # noqa: PLC0415

    require_java()
