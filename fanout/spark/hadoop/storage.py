"""The storage of a checkpoint on any file system of Spark's Hadoop client."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fanout.errors import CheckpointError
from fanout.landing.log.entries import DIRECTORY
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage
from fanout.landing.storage.storage import (
    FileInfo,
    check_name,
    finished,
    is_temporary,
    readable_path,
)
from fanout.spark.hadoop.jvm import (
    JAVA_ERRORS,
    hadoop_configuration,
    is_java,
    java_errors,
    jvm,
    redact,
)
from fanout.spark.hadoop.write_once import WriteOnce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from fanout.landing.storage.storage import Storage, StoredFiles

# Hadoop's own file systems that pyspark lacks, and the modules that have them.
_CONNECTORS = {"S3AFileSystem": "hadoop-aws", "AzureBlobFileSystem": "hadoop-azure"}

_NOT_FOUND = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")

EXISTS: Final = (
    "org.apache.hadoop.fs.FileAlreadyExistsException",
    "java.nio.file.FileAlreadyExistsException",
)
"""The exceptions of a file whose name is taken."""


class HadoopFiles:
    """Read the finished files below a directory of a Hadoop file system, which need not exist.

    Every call raises CheckpointError where the file system refuses.
    """

    def __init__(self, spark: SparkSession, file_system: Any, root: Any) -> None:
        self._jvm = jvm(spark)
        self._fs = file_system
        self._root = root
        self.location = redact(str(root.toString()))

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return a file's bytes, or None without a file; one above `limit` bytes is damaged."""
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
        """Return the finished files of a directory itself, by name; none without a directory."""
        with self._errors("list", directory):
            try:
                found = [
                    _info(status)
                    for status in self._fs.listStatus(self._path(directory))
                    if status.isFile()
                ]
            except JAVA_ERRORS as error:
                if is_java(error, *_NOT_FOUND):
                    return ()
                raise
        visible = (info for info in found if info.name[0] not in "_.")
        return tuple(sorted(visible, key=lambda info: info.name))

    @contextmanager
    def _errors(self, doing: str, name: str) -> Iterator[None]:
        with java_errors(f"{doing} {self.location}/{name}"):
            try:
                yield
            except JAVA_ERRORS as error:
                if is_java(error, *EXISTS):
                    raise FileExistsError(f"{self.location}/{name}") from error
                raise

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, check_name(name))


class HadoopStorage(HadoopFiles):
    """Files below one directory of a Hadoop file system, reached through Spark's JVM.

    `create` and `publish` are as exclusive and durable as `writer.creation`: see WriteOnce. They
    raise FileExistsError where the name is taken.
    """

    def __init__(self, spark: SparkSession, file_system: Any, root: Any) -> None:
        super().__init__(spark, file_system, root)
        # The JVM removes this directory when it ends, even when Python was killed.
        self._spark_temp = spark.sparkContext._temp_dir  # noqa: SLF001 - no public name
        self._scratch: Path | None = None
        with java_errors(f"use {self.location}"):
            self._fs.mkdirs(root)
            self.writer = WriteOnce(self._jvm, file_system, root)

    def create(self, name: str, data: bytes) -> None:
        """Create a file and its directories; see WriteOnce for how exclusively."""
        with self._errors("write", name):
            self.writer.write(self._path(name), self._jvm.java.io.ByteArrayInputStream(data))

    def walk(self, directory: str) -> tuple[str, ...]:
        """Return the names of all finished files of a directory and of those in it."""
        top = f"{self._root.toString()}/"
        found = []
        with self._errors("list", directory):
            try:
                files = self._fs.listFiles(self._path(directory), True)  # noqa: FBT003 - Java's
                while files.hasNext():
                    found.append(str(files.next().getPath().toString()).removeprefix(top))
            except JAVA_ERRORS as error:
                if is_java(error, *_NOT_FOUND):
                    return ()
                raise
        return finished(found)

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None if there is no such file."""
        with self._errors("read", name):
            try:
                return int(self._fs.getFileStatus(self._path(name)).getLen())
            except JAVA_ERRORS as error:
                if is_java(error, *_NOT_FOUND):
                    return None
                raise

    def delete(self, name: str) -> None:
        """Delete a file; one that does not exist is no error."""
        with self._errors("delete", name):
            self._fs.delete(self._path(name), False)  # noqa: FBT003 - Java: recursive

    def publish(self, local_file: Path, name: str) -> None:
        """Move a closed file of `scratch()` to its final name, with the promises of `create`."""
        with self._errors("write", name):
            source = self._jvm.java.io.FileInputStream(str(local_file))
            try:
                self.writer.write(self._path(name), source)
            finally:
                source.close()
        local_file.unlink()

    def scratch(self) -> Path:
        """Return the directory in which a file is written before `publish`.

        It is below Spark's own local directory, which the JVM removes when it ends.
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
        """Return what `spark.read` takes for a file."""
        return readable_path(str(self._path(name).toString()))

    def sweep(self) -> None:
        """Remove what a killed run left half written; for the owner, before it writes.

        A run that was fenced while it wrote loses its temporary too, and with it that write.
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


def open_storage(spark: SparkSession, checkpoint_location: str) -> Storage:
    """Open the part of a checkpoint location that belongs to fanout; make it when it is missing.

    The location is resolved as Spark resolves it: one without a scheme belongs to the default file
    system of the session (`fs.defaultFS`), a relative one to its working directory.

    Raises:
        CheckpointError: The scheme is unknown, or the location cannot be reached or written.
    """
    file_system, root, local = resolve(spark, checkpoint_location)
    return HadoopStorage(spark, file_system, root) if local is None else LocalStorage(local)


def open_files(spark: SparkSession, checkpoint_location: str) -> StoredFiles:
    """Open the same part of a checkpoint location for reading alone; nothing is made there.

    Raises:
        CheckpointError: The scheme is unknown, or the location cannot be reached.
    """
    file_system, root, local = resolve(spark, checkpoint_location)
    return HadoopFiles(spark, file_system, root) if local is None else LocalFiles(local)


def sweep_offsets(spark: SparkSession, checkpoint_location: str) -> None:
    """Remove what a killed run left of the first entry of Spark's log of offsets, as the owner.

    Spark 4 starts no first batch where there is a file in `offsets`, not even a temporary one that
    it would never read.
    """
    file_system, root, _ = resolve(spark, checkpoint_location)
    with java_errors(f"clean offsets in {checkpoint_location}"):
        offsets = jvm(spark).org.apache.hadoop.fs.Path(root.getParent(), "offsets")
        if not file_system.exists(offsets):
            return
        files = [status.getPath() for status in file_system.listStatus(offsets)]
        if all(file.getName().startswith(".") for file in files):
            for file in files:
                file_system.delete(file, False)  # noqa: FBT003 - Java: recursive


def resolve(spark: SparkSession, checkpoint_location: str) -> tuple[Any, Any, Path | None]:
    """Return the file system, fanout's directory, and that as a path if it is local."""
    doing = f"use the checkpoint location {checkpoint_location!r}"
    with java_errors(doing, lambda text: _advice(spark, text)):
        location = jvm(spark).org.apache.hadoop.fs.Path(checkpoint_location)
        file_system = location.getFileSystem(hadoop_configuration(spark))
        root = jvm(spark).org.apache.hadoop.fs.Path(file_system.makeQualified(location), DIRECTORY)
        uri = root.toUri()
        scheme, path = uri.getScheme(), uri.getPath()
    return file_system, root, Path(path) if scheme == "file" else None


def _advice(spark: SparkSession, error: str) -> str | None:
    """Return what to do about a file system that Hadoop does not have; None for other errors."""
    if 'No FileSystem for scheme "s3"' in error:
        return "the location of Hadoop's S3 connector begins with s3a://"
    for class_name, module in _CONNECTORS.items():
        if f"{class_name} not found" in error:
            version = jvm(spark).org.apache.hadoop.util.VersionInfo.getVersion()
            return f"start Spark with --packages org.apache.hadoop:{module}:{version}"
    return None


def _info(status: Any) -> FileInfo:
    name = str(status.getPath().getName())
    return FileInfo(name, int(status.getLen()), int(status.getModificationTime()))
