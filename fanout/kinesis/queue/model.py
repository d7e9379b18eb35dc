"""The operations on queues, for a botocore that does not know them yet; they are in model.json."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.model import ServiceModel


def add_queues(model: ServiceModel) -> None:
    """Add the operations on queues to a client's or a server's model; what it has stays.

    The model gets a document of its own: the one that it had is that of the whole session.
    """
    document: Any = deepcopy(model._service_description)  # noqa: SLF001 - no public name exists
    for kind, added in _added().items():
        for name, shape in added.items():
            document[kind].setdefault(name, shape)
    type(model).__init__(model, document, model.service_name)


@cache
def _added() -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = json.loads(
        files("fanout.kinesis.queue").joinpath("model.json").read_text()
    )
    return document
