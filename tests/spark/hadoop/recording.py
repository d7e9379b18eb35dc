"""A Hadoop file system of any scheme and any capabilities that notes how files are created."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fanout.spark.hadoop.jvm import hadoop_configuration, jvm
from fanout.spark.hadoop.storage import HadoopStorage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

CONDITIONAL = "fs.option.create.conditional.overwrite"
ABORTABLE = "fs.capability.outputstream.abortable"

_SOURCE = Path(__file__).with_name("RecordingFileSystem.java")


class Offer(NamedTuple):
    """What a kind of file system offers.

    Args:
        scheme: Of its locations.
        capabilities: Of its paths and streams.
        checks_at_close: Whether a name that is taken is refused when the file is closed.
    """

    scheme: str
    capabilities: Sequence[str] = ()
    checks_at_close: bool = False


class RecordingFileSystem:
    """A checkpoint `lake/chk` on one kind of file system, empty at first."""

    def __init__(self, spark: SparkSession, java_class: Any, offer: Offer) -> None:
        self._spark = spark
        self._jvm = jvm(spark)
        utils = self._jvm.org.apache.hadoop.util.ReflectionUtils
        self.java = utils.newInstance(java_class, hadoop_configuration(spark))
        self._root = f"{offer.scheme}://lake/chk"
        for capability in offer.capabilities:
            self.java.offer(capability)
        if offer.checks_at_close:
            self.java.checkAtClose()

    @cached_property
    def storage(self) -> HadoopStorage:
        return HadoopStorage(
            self._spark, self.java, self._jvm.org.apache.hadoop.fs.Path(self._root)
        )

    def overtake(self, name: str, content: bytes) -> None:
        """Let another writer be there first when the next file is closed."""
        self.java.overtake(f"{self._root}/{name}", content)

    def write_half(self, name: str) -> None:
        """Write some bytes from a source that breaks then, as a disk does that is going to fail."""
        broken = self._jvm.java.io.FileInputStream("/dev/null")
        broken.close()
        half = self._jvm.java.io.ByteArrayInputStream(b"half")
        both = self._jvm.java.io.SequenceInputStream(half, broken)
        self.storage.writer.write(self._jvm.org.apache.hadoop.fs.Path(self._root, name), both)

    def calls(self) -> list[str]:
        return [str(call) for call in self.java.calls()]

    def names(self) -> list[str]:
        return [str(name).removeprefix(f"{self._root}/") for name in self.java.names()]


def compile_class(spark: SparkSession) -> Any:
    """Compile the file system in Spark's JVM, with the compiler that Spark brings."""
    java = jvm(spark)
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE.read_text())
    return compiler.getClassLoader().loadClass("fanout.testing.RecordingFileSystem")
