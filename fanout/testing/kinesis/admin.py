"""The private way into a server in another process: POST /_fanout/<operation>, JSON arguments."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import FanOutError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ("ADMIN_PATH", "AdminApplication")

ADMIN_PATH = "/_fanout/"


class AdminApplication:
    """Answer the private path, and hand every other request on.

    Args:
        app: the WSGI application behind.
        operations: functions of JSON values, by name.
    """

    def __init__(self, app: Any, operations: Mapping[str, Callable[..., Any]]) -> None:
        self._app = app
        self._operations = operations

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request: run the operation that its path names."""
        path = environ["PATH_INFO"]
        if not path.startswith(ADMIN_PATH):
            answer: Iterable[bytes] = self._app(environ, start_response)
            return answer
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, document = self._call(path.removeprefix(ADMIN_PATH), body)
        encoded = json.dumps(document).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(encoded)))]
        start_response(status, headers)
        return [encoded]

    def _call(self, name: str, body: bytes) -> tuple[str, dict[str, Any]]:
        operation = self._operations.get(name)
        if operation is None:
            return "404 Not Found", {"error": f"there is no operation {name!r}"}
        try:
            return "200 OK", {"result": operation(**_arguments(operation, body))}
        except FanOutError as error:
            return "400 Bad Request", {"error": str(error)}


def _arguments(operation: Callable[..., Any], body: bytes) -> dict[str, Any]:
    """Read the arguments of an operation.

    Raises:
        OptionError: the body is not a JSON object, or the operation takes other names.
    """
    try:
        arguments = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        inspect.signature(operation).bind(**arguments)
    except (*MALFORMED_JSON, TypeError) as error:
        raise OptionError(f"these are no arguments of the operation: {error}") from error
    return arguments
