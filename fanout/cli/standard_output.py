"""Write to the standard output from an event loop, however slowly it is read."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
from contextlib import contextmanager
from select import PIPE_BUF
from typing import TYPE_CHECKING, Final, final

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Lines are joined to pieces of some such size, in bytes.
_PIECE: Final = 64 * 1024


@final
class StandardOutput:
    """The standard output of the process.

    A write never blocks the event loop, so that Ctrl-C and timers work while a pager shows a page.
    The file stays in blocking mode, because other processes share it.
    """

    def __init__(self) -> None:
        # Python sets it to None where it was closed before the start.
        if sys.stdout is None:
            raise SetupError("there is no standard output to write to: it is closed")
        self._file: Final = 1
        self._encoding = sys.stdout.encoding
        mode = os.fstat(self._file).st_mode
        self._is_pipe = stat.S_ISFIFO(mode)
        # Whether it can be waited for, by poll; a file on a disk cannot.
        self._can_wait = self._is_pipe or stat.S_ISSOCK(mode) or os.isatty(self._file)

    @property
    def colored(self) -> bool:
        """Whether it is a terminal whose user wants colors."""
        # https://no-color.org
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not plain and os.isatty(self._file)

    async def write(self, lines: Iterable[str]) -> int:
        """Write lines in large pieces, and return how many they were.

        A BrokenPipeError says that the reader of the pipe has gone, and a SetupError why else
        nothing can be written, such as a full disk. Cancellation: a part of a line may have been
        written.
        """
        piece: list[bytes] = []
        size = count = 0
        for line in lines:
            count += 1
            piece.append(line.encode(self._encoding, "backslashreplace"))
            size += len(piece[-1])
            if size >= _PIECE:
                await self._write(b"".join(piece))
                piece, size = [], 0
        await self._write(b"".join(piece))
        return count

    @contextmanager
    def watched(self, on_closed: Callable[[], None]) -> Iterator[None]:
        """Notice while the block runs that the reader of a pipe has gone, also without a write."""
        # The function may be called more than once.
        only_written = fcntl.fcntl(self._file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        if not (self._is_pipe and only_written):
            yield
            return
        loop = asyncio.get_running_loop()
        # Nothing can be read there, but for the error that the other end is closed.
        loop.add_reader(self._file, on_closed)
        try:
            yield
        finally:
            loop.remove_reader(self._file)

    async def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                if self._can_wait:
                    await self._writable()
                    # So much is taken at once by what is writable.
                    left = left[os.write(self._file, left[:PIPE_BUF]) :]
                else:
                    left = left[await asyncio.to_thread(os.write, self._file, left) :]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise BrokenPipeError from error
        except OSError as error:
            raise SetupError(f"the records cannot be written: {error.strerror}") from error

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        writable = asyncio.Event()
        loop.add_writer(self._file, writable.set)
        try:
            await writable.wait()
        finally:
            loop.remove_writer(self._file)
