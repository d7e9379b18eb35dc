"""Create a file without replacing another, by what each Hadoop file system offers."""

from __future__ import annotations

import enum
import logging
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fanout.errors import CheckpointError
from fanout.landing.storage.storage import temporary_name
from fanout.spark.hadoop.jvm import JAVA_ERRORS, redact

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

_CONDITIONAL = "fs.option.create.conditional.overwrite"
_ATTEMPT = "fanout-attempt"
_COPY_BYTES = 1 << 16


class Creation(enum.Enum):
    """How a file system creates a file without replacing one."""

    CONDITIONAL = "a put that the store itself refuses when the name is taken"
    PUT = "a put of the whole object when the stream is closed"
    RENAME = "a temporary file that is renamed"


class WriteOnce:
    """The strongest way to create a file that a Hadoop file system offers.

    What a write promises is what the file system gives:

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
      and durable as that file system's rename, and exclusive only if that checks the name and takes
      it in one step, as HDFS does and a local file system does not.
    """

    def __init__(self, jvm: Any, file_system: Any, root: Any) -> None:
        self._jvm = jvm
        self._fs = file_system
        self.creation = _choose_creation(file_system, root)

    def write(self, final: Any, source: Any) -> None:
        """Write what a Java stream, which the caller closes, holds to a name that is not taken.

        Raises:
            FileExistsError: The name is taken, perhaps by a writer who was faster.
            CheckpointError: A rename was refused for another reason.
        """
        match self.creation:
            case Creation.CONDITIONAL:
                self._put_if_absent(final, source)
            case Creation.PUT:
                self._fill(self._fs.create(final, False), source)  # noqa: FBT003 - Java: overwrite
            case Creation.RENAME:
                with self._renamed(final) as temporary:
                    stream = self._fs.create(temporary, False)  # noqa: FBT003 - Java: overwrite
                    self._fill(stream, source)

    def _fill(self, stream: Any, source: Any) -> None:
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
        """Put an object unless there is one; after an error, read which attempt wrote it."""
        attempt = uuid.uuid4().hex
        builder = self._fs.createFile(final).must(_CONDITIONAL, "true")
        builder.opt(f"fs.s3a.create.header.{_ATTEMPT}", attempt)
        try:
            self._fill(builder.build(), source)
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
        # Not every rename refuses a name that is taken; and a look saves writing in vain.
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


def _choose_creation(file_system: Any, root: Any) -> Creation:
    scheme = root.toUri().getScheme()
    if file_system.hasPathCapability(root, _CONDITIONAL):
        return Creation.CONDITIONAL
    if scheme in {"s3a", "s3", "s3n"}:
        _log.warning(
            "%s cannot create a file exclusively: use Hadoop 3.4.2 or newer with "
            "fs.s3a.create.conditional.enabled, and never start two queries here at once",
            redact(str(root.toString())),
        )
        return Creation.PUT
    return Creation.PUT if scheme == "gs" else Creation.RENAME
