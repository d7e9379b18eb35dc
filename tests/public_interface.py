"""The public names and their signatures, as text that is compared with `public_interface.txt`.

After a wanted change, write the file anew: `python -m tests.public_interface`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("MODULES", "SNAPSHOT", "interface", "public_names")

MODULES: Final = (
    "fanout",
    "fanout.decoding",
    "fanout.errors",
    "fanout.kafka",
    "fanout.kinesis",
    "fanout.metrics",
    "fanout.spark",
    "fanout.testing",
)
SNAPSHOT: Final = Path(__file__).with_name("public_interface.txt")


def interface() -> str:
    """Return a line for each public name, and one for each of its public members."""
    return "\n".join(line for module in MODULES for line in _of_module(module)) + "\n"


def public_names() -> Iterator[str]:
    """Yield each public name with its module."""
    for module in MODULES:
        yield from (f"{module}.{name}" for name in importlib.import_module(module).__all__)


def _of_module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for export in sorted(module.__all__):
        value = getattr(module, export)
        path = f"{name}.{export}"
        if inspect.isclass(value):
            yield f"class {path}{_bases(value)}"
            yield from (f"  {line}" for line in _members(value))
        elif inspect.isfunction(value):
            yield f"def {path}{_signature(value)}"
        else:
            yield f"{path}: {type(value).__name__}"


def _bases(kind: type) -> str:
    names = [base.__name__ for base in kind.__bases__ if base is not object]
    return f"({', '.join(names)})" if names else ""


def _members(kind: type) -> Iterator[str]:
    if issubclass(kind, Enum):
        yield from (f"{member.name} = {member.value!r}" for member in kind)
        return
    if not issubclass(kind, BaseException) or "__init__" in vars(kind):
        yield f"{kind.__name__}{_signature(kind)}"
    fields = (
        {field.name for field in dataclasses.fields(kind)}
        if dataclasses.is_dataclass(kind)
        else set()
    )
    for name, value in sorted(vars(kind).items()):
        if name.startswith("_") or name in fields:
            continue
        if isinstance(value, classmethod | staticmethod):
            yield f"{name}{_signature(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"{name}{_signature(value)}"
        else:
            yield f"{name}: {type(value).__name__}"


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except ValueError:  # what C has written tells none
        return "(...)"


if __name__ == "__main__":
    SNAPSHOT.write_text(interface(), encoding="utf-8")
