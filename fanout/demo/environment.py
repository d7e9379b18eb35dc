"""What the demo needs from the machine, checked before anything is started."""

from __future__ import annotations

from importlib.util import find_spec

from fanout.errors import SetupError

__all__ = ("check_environment",)

_EXTRAS = {"pyspark": "spark", "aioboto3": "kinesis", "moto": "testing"}


def check_environment() -> None:
    """Check that everything that the demo starts is installed.

    Raises:
        SetupError: If an extra is missing, or there is no Java for Spark.
    """
    missing = {extra for module, extra in _EXTRAS.items() if find_spec(module) is None}
    if missing:
        extras = ",".join(sorted(missing))
        raise SetupError(f"the demo needs more of fanout: pip install 'fanout[{extras}]'")
    # It imports pyspark, which is known to be there only now.
    from fanout.spark.session import require_java  # noqa: PLC0415

    require_java()
