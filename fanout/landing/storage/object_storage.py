"""A checkpoint or a landing on object storage, without a JVM."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, TypeVar, final

from obstore.exceptions import BaseError
from tenacity import RetryCallState, Retrying

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import CheckpointError, SetupError
from fanout.landing.storage.local_storage import ScratchDirectory
from fanout.landing.storage.object_errors import (
    asks_again,
    is_lost,
    is_missing,
    is_server_error,
    may_have_written,
    object_errors,
)
from fanout.landing.storage.storage import FileInfo, check_name, finished, readable_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fanout.landing.storage.object_clients import Store
    from fanout.landing.storage.object_location import ObjectLocation


@final
class OpenObject(io.RawIOBase):
    """Read parts of an object of so many bytes, each with one request."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to where the next read begins; return that."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}
        self._at = origin[whence] + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as the object goes; return the number of bytes."""
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = self._read(self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


_MAX_SINGLE_PUT: Final = 64 << 20
_MAX_QUICK_PUT: Final = 4 << 20
_PART: Final = 16 << 20
_PARALLEL_PARTS: Final = 4
# How often a request is made whose answer is lost. obstore retries what was refused for a while.
_ATTEMPTS: Final = 3
# For how long a request is made again that the service asks for, as obstore does with others.
_ASKED_SECONDS: Final = 12.0
_WAITS: Final = Backoff(base=0.1, cap=3.0)

_Answer = TypeVar("_Answer")


@final
class ObjectStorage:
    """Objects below one prefix of a bucket.

    Files up to 64 MiB are written by one conditional put, which the service refuses when the name
    is taken: exclusively, atomically and durably. A put whose answer is lost is made again; where
    the name is taken then, the object's bytes tell whether this put wrote it. So an attempt to
    write the same bytes twice succeeds, and different writers must write different bytes.

    A larger file is uploaded in parts, atomically and durably, after a look whether its name is
    taken: two writers of one name can both succeed, so its name must be unique. A process that is
    killed meanwhile leaves parts that no listing shows: let a rule of the bucket's lifecycle abort
    uploads that stay incomplete.

    What the service refuses or does not answer is a CheckpointError; without an answer to `create`
    or `publish`, the object may be there. `uploads` is the client for requests that may take long.
    """

    # obstore's threads begin with its first request, and are not in a process that is forked later:
    # each request there would wait for ever.
    _used_in: ClassVar[int] = 0

    def __init__(self, place: ObjectLocation, store: Store, uploads: Store) -> None:
        self.location = place.uri
        self._bucket = place.bucket
        self._store: Any = store
        self._uploads: Any = uploads
        self._scratch: ScratchDirectory | None = None

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return an object's bytes, at most `limit`, or None if there is no such object."""
        with self._errors("read", name):
            try:
                found = _ask(lambda: self._store.get(name))
            except FileNotFoundError as error:
                if is_missing(error):
                    return None
                raise
            if found.meta["size"] <= limit:
                return bytes(found.bytes())
        raise CheckpointError(f"{self.location}/{name} is larger than {limit} bytes: damaged")

    def open(self, name: str) -> OpenObject:
        """Open an object for `pyarrow.parquet.ParquetFile`, which reads parts of it.

        A missing object is a FileNotFoundError. Each read may raise as this call does.
        """
        size = self.size(name)
        if size is None:
            raise FileNotFoundError(f"{self.location}/{name}")
        return OpenObject(partial(self._read_range, name), size)

    def _read_range(self, name: str, start: int, end: int) -> bytes:
        with self._errors("read", name):
            try:
                return bytes(_ask(lambda: self._store.get_range(name, start=start, end=end)))
            except FileNotFoundError as error:
                if not is_missing(error):
                    raise
        raise FileNotFoundError(f"{self.location}/{name}")

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        """Return the objects of a directory, by name, and not deeper; none if there are none."""
        with self._errors("list", directory):
            found = _ask(lambda: self._store.list_with_delimiter(directory)["objects"])
        inside = f"{directory}/"
        infos = (
            FileInfo(
                each["path"].removeprefix(inside),
                each["size"],
                int(each["last_modified"].timestamp() * 1_000),
            )
            for each in found
            if each["path"].startswith(inside)  # some tools make an object of the directory itself
        )
        visible = (info for info in infos if info.name[0] not in "_.")
        return tuple(sorted(visible, key=lambda info: info.name))

    def walk(self, directory: str) -> tuple[str, ...]:
        """Return the names of all objects of a directory and of those in it."""
        with self._errors("list", directory):
            return _ask(lambda: self._walk(directory))

    def _walk(self, directory: str) -> tuple[str, ...]:
        return finished(each["path"] for page in self._store.list(directory) for each in page)

    def create(self, name: str, data: bytes) -> None:
        """Create an object: exclusively, atomically and durably; a taken name is a FileExistsError.

        No other writer writes the same bytes.
        """
        with self._errors("write", name):
            self._put(self._client(len(data)), name, data)

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes, or None if there is no such object."""
        with self._errors("read", name):
            try:
                return int(_ask(lambda: self._store.head(name))["size"])
            except FileNotFoundError:
                return None

    def delete(self, name: str) -> None:
        """Delete an object; one that does not exist is no error."""
        with self._errors("delete", name):
            try:
                _ask(lambda: self._store.delete(name), repeats=is_lost)
            except FileNotFoundError as error:
                if not is_missing(error):
                    raise

    def publish(self, local_file: Path, name: str) -> None:
        """Upload a finished file of `scratch()` to its final name, as the class promises.

        The file is closed by its writer, and gone afterwards. A name that is taken is a
        FileExistsError.
        """
        with self._errors("write", name):
            size = local_file.stat().st_size
            if size <= _MAX_SINGLE_PUT:
                self._put(self._client(size), name, local_file.read_bytes())
            else:
                self._put_in_parts(name, local_file)
            local_file.unlink()

    def scratch(self) -> Path:
        """Return the local directory in which a file is written before `publish`."""
        if self._scratch is None:
            self._scratch = ScratchDirectory()
        return self._scratch.path

    def uri(self, name: str) -> str:
        """Return what `spark.read` takes for an object, with the scheme of the location."""
        return readable_path(f"{self.location}/{check_name(name)}")

    def sweep(self) -> None:
        """Do nothing: an object is there as a whole, or not at all."""

    def close(self) -> None:
        """Remove the scratch directory."""
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _client(self, size: int) -> Any:
        """Return the client that puts so many bytes."""
        return self._store if size <= _MAX_QUICK_PUT else self._uploads

    def _put(self, store: Any, name: str, data: bytes) -> None:
        """Put an object under a name that is not taken, or find that an earlier attempt did."""

        def put() -> None:
            try:
                store.put(name, data, mode="create")
            except (BaseError, FileNotFoundError) as error:
                written = may_have_written(error) or asks_again(error)
                if not written or not self._holds(store, name, io.BytesIO(data), len(data)):
                    raise

        _ask(put, repeats=_is_to_be_put_again)

    def _put_in_parts(self, name: str, local_file: Path) -> None:
        def taken() -> bool:
            with local_file.open("rb") as file:
                return self._holds(self._uploads, name, file, local_file.stat().st_size)

        def put() -> None:
            try:
                self._uploads.put(
                    name,
                    local_file,
                    use_multipart=True,
                    chunk_size=_PART,
                    max_concurrency=_PARALLEL_PARTS,
                )
            except (BaseError, FileNotFoundError) as error:
                written = may_have_written(error) or asks_again(error)
                if not written or not taken():
                    raise

        if not taken():
            _ask(put)

    def _holds(self, store: Any, name: str, content: BinaryIO, size: int) -> bool:
        """Say whether an object is there, with these bytes; with others it is a FileExistsError."""
        try:
            found = store.get(name)
        except FileNotFoundError:
            return False
        if found.meta["size"] != size or any(
            content.read(len(chunk)) != bytes(chunk) for chunk in found
        ):
            raise FileExistsError(f"{self.location}/{name}")
        return True

    @contextmanager
    def _errors(self, doing: str, name: str) -> Iterator[None]:
        check_name(name)
        _check_process()
        with object_errors(f"{doing} {self.location}/{name}", self._bucket):
            yield


def _check_process() -> None:
    """Check that this process is the one in which obstore's threads are, and no fork of that."""
    process = os.getpid()
    ObjectStorage._used_in = ObjectStorage._used_in or process  # noqa: SLF001 - in its module
    if (used := ObjectStorage._used_in) != process:  # noqa: SLF001 - the same
        raise SetupError(
            f"object storage cannot be reached from process {process}, which was forked from "
            f"process {used} after that had used it: start it with the start method spawn or "
            f"forkserver of multiprocessing"
        )


def _ask(
    call: Callable[[], _Answer], *, repeats: Callable[[Exception], bool] = lambda _: False
) -> _Answer:
    """Make a request, and again while the service asks for that.

    `repeats` says of an error that the request may be made again in any case, a few times.
    """

    def is_repeated(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        if not isinstance(error, Exception):
            return False
        if asks_again(error):
            return (state.seconds_since_start or 0.0) < _ASKED_SECONDS
        return repeats(error) and state.attempt_number < _ATTEMPTS

    return Retrying(retry=is_repeated, wait=FullJitter(_WAITS, Random()))(call)  # noqa: S311


def _is_to_be_put_again(error: Exception) -> bool:
    """Say whether a put whose object is not there is made again: its answer may be lost.

    obstore has repeated what the service answered with 5xx for long enough.
    """
    return may_have_written(error) and not is_server_error(error)
