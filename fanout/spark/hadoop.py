"""A checkpoint on any file system that Spark's Hadoop client knows."""

from __future__ import annotations

import enum
import logging
import shutil
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanout.errors import CheckpointError
from fanout.spark.files import FileInfo, check_name, is_temporary, readable_path, temporary_name
from fanout.spark.jvm import JAVA_ERRORS, is_java, java_errors, jvm, redact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ("Creation", "HadoopStorage")

_log = logging.getLogger(__name__)

_CONDITIONAL = "fs.option.create.conditional.overwrite"
_ATTEMPT = "fanout-attempt"
_COPY_BYTES = 1 << 16
_NOT_FOUND = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")
_EXISTS = (
    "org.apache.hadoop.fs.FileAlreadyExistsException",
    "java.nio.file.FileAlreadyExistsException",
)


class Creation(enum.Enum):
    """How a file system creates a file without replacing one."""

    CONDITIONAL = "a put that the store itself refuses when the name is taken"
    PUT = "a put of the whole object when the stream is closed"
    RENAME = "a temporary file that is renamed"


class HadoopStorage:
    """Files below one directory of a Hadoop file system, reached through Spark's JVM.

    What `create` and `publish` promise is what the file system gives:

    - HDFS, and ABFS with a hierarchical namespace: exclusive, atomic and durable. A temporary is
      written, flushed to disk with hsync, and renamed; the server refuses to rename onto a file.
    - S3A of Hadoop 3.4.2 or newer: exclusive, atomic and durable, by a conditional put
      (`fs.option.create.conditional.overwrite`, HADOOP-19256), unless
      `fs.s3a.create.conditional.enabled` is off. A put whose answer was lost is recognised by an
      id in the object's metadata.
    - GCS: exclusive, atomic and durable: its connector puts an object that must not be replaced
      under the precondition that it does not exist.
    - S3A of an older Hadoop (pyspark 3.5), and other S3 connectors: atomic and durable, but not
      exclusive. They look, then put: two writers who race can both succeed and the later one stays.
      A warning is logged.
    - Any other scheme, viewfs over a local folder included: a look, then a rename. It is as atomic
      and durable as that file system's rename, and exclusive only if that refuses a name that is
      taken, as HDFS does and a local file system does not.

    Args:
        spark: A classic session.
        file_system: The `org.apache.hadoop.fs.FileSystem` that holds the root.
        root: The qualified `org.apache.hadoop.fs.Path` of the directory that holds everything.

    Raises:
        CheckpointError: The directory cannot be made.
    """

    def __init__(self, spark: SparkSession, file_system: Any, root: Any) -> None:
        self._jvm = jvm(spark)
        self._fs = file_system
        self._root = root
        # The JVM removes this directory when it ends, even when Python was killed.
        self._spark_temp = spark.sparkContext._temp_dir  # noqa: SLF001 - no public name
        self._scratch: Path | None = None
        self.location = redact(str(root.toString()))
        with java_errors(f"use {self.location}"):
            self._fs.mkdirs(root)
            self.creation = self._choose_creation()

    def create(self, name: str, data: bytes) -> None:
        """Create a file; see the class for how exclusively.

        Args:
            name: The file; its directories are made.
            data: All of its bytes.

        Raises:
            FileExistsError: The name is taken, perhaps by a writer who was faster.
            CheckpointError: The file system refused.
        """
        with self._errors("write", name):
            self._write_once(self._path(name), self._jvm.java.io.ByteArrayInputStream(data))

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return a file's bytes, or None if there is no such file.

        Args:
            name: The file.
            limit: Bytes that it may have at most.

        Raises:
            CheckpointError: The file is larger, or the file system refused.
        """
        with self._errors("read", name):
            try:
                stream = self._fs.open(self._path(name))
                try:
                    data = bytes(stream.readNBytes(limit + 1))
                finally:
                    stream.close()
            except JAVA_ERRORS as error:
                if is_java(error, *_NOT_FOUND):
                    return None
                raise
        if len(data) > limit:
            raise CheckpointError(f"{self.location}/{name} is larger than {limit} bytes: damaged")
        return data

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        """Return the finished files of a directory, by name; none if there is no directory.

        Args:
            directory: The directory; what lies deeper is not listed.

        Raises:
            CheckpointError: The file system refused.
        """
        with self._errors("list", directory):
            try:
                found = [
                    FileInfo(str(status.getPath().getName()), int(status.getLen()))
                    for status in self._fs.listStatus(self._path(directory))
                    if status.isFile()
                ]
            except JAVA_ERRORS as error:
                if is_java(error, *_NOT_FOUND):
                    return ()
                raise
        visible = (info for info in found if info.name[0] not in "_.")
        return tuple(sorted(visible, key=lambda info: info.name))

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None if there is no such file.

        Args:
            name: The file.

        Raises:
            CheckpointError: The file system refused.
        """
        with self._errors("read", name):
            try:
                return int(self._fs.getFileStatus(self._path(name)).getLen())
            except JAVA_ERRORS as error:
                if is_java(error, *_NOT_FOUND):
                    return None
                raise

    def delete(self, name: str) -> None:
        """Delete a file; one that does not exist is no error.

        Args:
            name: The file.

        Raises:
            CheckpointError: The file system refused.
        """
        with self._errors("delete", name):
            self._fs.delete(self._path(name), False)  # noqa: FBT003 - Java: recursive

    def publish(self, local_file: Path, name: str) -> None:
        """Copy a finished file of `scratch()` to its final name, with the promises of `create`.

        Args:
            local_file: The file, closed by its writer; it is gone afterwards.
            name: The final name; its directories are made.

        Raises:
            FileExistsError: The name is taken.
            CheckpointError: The file system refused.
        """
        with self._errors("write", name):
            source = self._jvm.java.io.FileInputStream(str(local_file))
            try:
                self._write_once(self._path(name), source)
            finally:
                source.close()
        local_file.unlink()

    def scratch(self) -> Path:
        """Return the directory in which a file is written before `publish`.

        It is below Spark's own local directory, which the JVM removes when it ends.

        Raises:
            CheckpointError: It cannot be made.
        """
        if self._scratch is None:
            try:
                self._scratch = Path(tempfile.mkdtemp(prefix="fanout-", dir=self._spark_temp))
            except OSError as error:
                raise CheckpointError(
                    f"cannot make a directory below {self._spark_temp}: {error.strerror}"
                ) from error
        return self._scratch

    def uri(self, name: str) -> str:
        """Return what `spark.read` takes for a file.

        Args:
            name: The file.
        """
        return readable_path(str(self._path(name).toString()))

    def sweep(self) -> None:
        """Remove what a killed run left half written; for the owner, before it writes.

        A run that was fenced while it wrote loses its temporary too, and with it that write.

        Raises:
            CheckpointError: The file system refused.
        """
        with java_errors(f"clean {self.location}"):
            files = self._fs.listFiles(self._root, True)  # noqa: FBT003 - Java: recursive
            while files.hasNext():
                path = files.next().getPath()
                if is_temporary(path.getName()):
                    self._fs.delete(path, False)  # noqa: FBT003 - Java: recursive

    def close(self) -> None:
        """Remove the scratch directory. The file system is Spark's own and stays open."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _choose_creation(self) -> Creation:
        scheme = self._root.toUri().getScheme()
        if self._fs.hasPathCapability(self._root, _CONDITIONAL):
            return Creation.CONDITIONAL
        if scheme in {"s3a", "s3", "s3n"}:
            _log.warning(
                "%s cannot create a file exclusively: use Hadoop 3.4.2 or newer with "
                "fs.s3a.create.conditional.enabled, and never start two queries here at once",
                self.location,
            )
            return Creation.PUT
        return Creation.PUT if scheme == "gs" else Creation.RENAME

    def _write_once(self, final: Any, source: Any) -> None:
        """Write what a Java stream holds to a name that is not taken."""
        match self.creation:
            case Creation.CONDITIONAL:
                self._put_if_absent(final, source)
            case Creation.PUT:
                self._write(self._fs.create(final, False), source)  # noqa: FBT003 - Java: overwrite
            case Creation.RENAME:
                with self._renamed(final) as temporary:
                    stream = self._fs.create(temporary, False)  # noqa: FBT003 - Java: overwrite
                    self._write(stream, source)

    def _write(self, stream: Any, source: Any) -> None:
        """Write everything, force it to the servers' disks where that is offered, and close.

        A stream that fails is aborted if it can be, and never closed: an object store would make
        an object of the part that it has.
        """
        try:
            self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, stream, _COPY_BYTES)
            if stream.hasCapability("hsync"):
                stream.hsync()
        except JAVA_ERRORS:
            if stream.hasCapability("fs.capability.outputstream.abortable"):
                stream.abort()
            raise
        stream.close()

    def _put_if_absent(self, final: Any, source: Any) -> None:
        """Put an object unless there is one; after an error the object says who was faster."""
        attempt = uuid.uuid4().hex
        builder = self._fs.createFile(final).must(_CONDITIONAL, "true")
        builder.opt(f"fs.s3a.create.header.{_ATTEMPT}", attempt)
        try:
            self._write(builder.build(), source)
        except JAVA_ERRORS:
            # The client retries a put whose answer was lost, and then finds its own object.
            if not self._fs.exists(final):
                raise
            winner = self._fs.getXAttr(final, f"header.{_ATTEMPT}")
            if winner is None or bytes(winner).decode() != attempt:
                raise FileExistsError(str(final.toString())) from None

    @contextmanager
    def _renamed(self, final: Any) -> Iterator[Any]:
        """Yield a temporary beside `final` and rename it in the end, unless the name is taken."""
        # A local file system below viewfs would replace the file: look first.
        if self._fs.exists(final):
            raise FileExistsError(str(final.toString()))
        temporary = self._jvm.org.apache.hadoop.fs.Path(final.getParent(), temporary_name())
        try:
            yield temporary
            self._rename(temporary, final)
        except BaseException:
            self._fs.delete(temporary, False)  # noqa: FBT003 - Java: recursive
            raise

    def _rename(self, temporary: Any, final: Any) -> None:
        if self._fs.rename(temporary, final):
            return
        if self._fs.exists(final):
            raise FileExistsError(str(final.toString()))
        raise CheckpointError(f"cannot write {final.toString()}: the rename was refused")

    @contextmanager
    def _errors(self, doing: str, name: str) -> Iterator[None]:
        with java_errors(f"{doing} {self.location}/{name}"):
            try:
                yield
            except JAVA_ERRORS as error:
                if is_java(error, *_EXISTS):
                    raise FileExistsError(f"{self.location}/{name}") from error
                raise

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, check_name(name))
