"""Optional libraries: names that are imported when they are used, and the extras they need."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# The extra that installs each optional library.
_EXTRAS: Final = {
    "adbc_driver_manager": "postgres",
    "adbc_driver_postgresql": "postgres",
    "aioboto3": "kinesis",
    "aiobotocore": "kinesis",
    "aiokafka": "kafka",
    "aws_msk_iam_sasl_signer": "kafka,msk",
    "boto3": "kinesis",
    "botocore": "kinesis",
    "cbor2": "testing",
    "confluent_kafka": "kafka,share",
    "cryptography": "spark",
    "deltalake": "delta",
    "flask": "testing",
    "google": "protobuf",
    "google.protobuf": "protobuf",
    "h2": "kinesis,http2",
    "moto": "testing",
    "numpy": "kafka",
    "obstore": "object-storage",
    "opentelemetry": "otel",
    "opentelemetry.exporter": "prometheus",
    "opentelemetry.sdk": "prometheus",
    "prometheus_client": "prometheus",
    "pandas": "spark",
    "py4j": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "websockets": "processes",
    "werkzeug": "testing",
}


@contextmanager
def naming_extras(user: str, *, extra: str | None = None) -> Iterator[None]:
    """Name the extra where the block imports a library that is not installed.

    Args:
        user: What needs the library, for the message.
        extra: The extra to name where that has all libraries of the user; None for the smallest
            one that has the library.

    Raises:
        SetupError: If an optional library is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = _missing(error.name or "")
        if library is None:
            raise
        raise SetupError(
            f"{user} needs {library}, which is not installed: "
            f"pip install 'fanout-streams[{extra or _EXTRAS[library]}]'"
        ) from error


def require(library: str) -> None:
    """Check that an optional library is there, without loading it.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    if find_spec(library) is None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)


def _missing(module: str) -> str | None:
    """Return the optional library that a module belongs to, if that is not installed."""
    packages = accumulate(module.split("."), lambda package, name: f"{package}.{name}")
    missing = (one for one in packages if find_spec(one) is None)
    first = next(missing, None)
    return first if first in _EXTRAS else None


def lazy_exports(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build `__getattr__` and `__dir__` of a package, as PEP 562 describes them.

    A package that is imported for one of its names does not load the libraries of the others.
    Its `__all__` is for readers of its text: it is removed, and found anew by those who ask for it,
    as `from package import *` does. It has the names then whose libraries are installed.

    Args:
        package: The package's `__name__`.
        modules: The module of each exported name, and after a colon the name that it has there
            if that is another one.

    Returns:
        The two functions. The first raises AttributeError for an unknown name, and SetupError
        that names the extra where a library is not installed.
    """

    def load(name: str) -> Any:
        if name == "__all__":
            value: Any = tuple(each for each in modules if is_installed(each))
        elif name in modules:
            with naming_extras(f"{package}.{name}"):
                module, _, own = modules[name].partition(":")
                value = getattr(import_module(module), own or name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def is_installed(name: str) -> bool:
        with suppress(SetupError):
            return load(name) is not None
        return False

    vars(sys.modules[package]).pop("__all__", None)
    return load, lambda: sorted(modules)
