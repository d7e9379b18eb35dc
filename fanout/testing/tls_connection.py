"""A connection over TLS whose first bytes can be looked at before they are read."""

from __future__ import annotations

import ssl
from typing import Any

# A record of TLS is shorter.
_RECORD = 1 << 16


class TlsConnection(ssl.SSLSocket):
    """Read what was looked at first; TLS has no MSG_PEEK."""

    _ahead = b""

    def look_ahead(self, size: int) -> bytes:
        """Wait for so many bytes, and return them; fewer if the client has hung up."""
        while len(self._ahead) < size and (data := super().recv(_RECORD)):
            self._ahead += data
        return self._ahead[:size]

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read so many bytes at most."""
        if self._ahead:
            data, self._ahead = self._ahead[:buflen], self._ahead[buflen:]
            return data
        return super().recv(buflen, flags)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Read into a buffer."""
        if self._ahead:
            data = self.recv(nbytes or len(buffer))
            buffer[: len(data)] = data
            return len(data)
        return super().recv_into(buffer, nbytes, flags)
