"""Calls into the driver's JVM, and its exceptions as one sentence."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors.exceptions.captured import CapturedException

from fanout.errors import CheckpointError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pyspark.sql import SparkSession

# pyspark turns some Java exceptions (IllegalArgumentException) into its own before we see them.
# Py4JError is also what a call into a JVM that has gone away raises.
JAVA_ERRORS = (Py4JError, CapturedException, ConnectionError)

_MAX_CAUSES = 20
# It names columns and types, whose list follows its first line.
_ANALYSIS = "org.apache.spark.sql.AnalysisException"
_MAX_MESSAGE = 1_000
_TRACE = ("at ", "SQLSTATE: ")
_CONDITION = re.compile(r"\[[A-Z0-9_.]+\]")
# The class of SQL's states for errors of values.
_DATA_EXCEPTION = "22"


def jvm(spark: SparkSession) -> Any:
    """Return the py4j view of the driver's JVM."""
    return spark._jvm  # noqa: SLF001 - pyspark's only door to the JVM


def hadoop_configuration(spark: SparkSession) -> Any:
    """Return a Hadoop configuration as Spark's own checkpoint sees it, session options included."""
    session: Any = spark._jsparkSession  # noqa: SLF001 - pyspark's only door to the session
    return session.sessionState().newHadoopConf()


@contextmanager
def java_errors(doing: str, advice: Callable[[str], str | None] = lambda _: None) -> Iterator[None]:
    """Turn a Java exception in the block into a CheckpointError of one line.

    Args:
        doing: What was tried, as it follows "cannot": "read offsets/3".
        advice: Returns what to do about an error, by its first line; None where it does not know.
    """
    try:
        yield
    except JAVA_ERRORS as error:
        line = first_line(error)
        remedy = advice(line)
        text = f"cannot {doing}: {line}" if remedy is None else f"cannot {doing}: {line}; {remedy}"
        raise CheckpointError(redact(text)) from error


def is_java(error: BaseException, *class_names: str) -> bool:
    """Say whether `error` stands for a Java exception of one of these classes or their subclasses.

    Classes are compared by their full names, for one that is not on the class path cannot be asked
    for.
    """
    origin = _origin(error)
    return origin is not None and _is_a(origin, class_names)


def is_caused_by(error: BaseException, *class_names: str) -> bool:
    """Say whether a Java exception of one of these classes is behind `error`; see `is_java`."""
    return any(_is_a(cause, class_names) for cause in java_causes(error))


def has_gone(error: BaseException) -> bool:
    """Say whether a failed call means that the JVM itself has gone away."""
    # pyspark 3.5 tells what a Python worker has raised without the exception of Java behind it.
    return isinstance(error, (Py4JError, ConnectionError)) and _origin(error) is None


def redact(text: str) -> str:
    """Return `text` without the passwords of URIs: some storage URIs can carry one."""
    return re.sub(r"(://[^/@:\s]*):[^/@\s]+@", r"\1:***@", text)


def first_line(error: BaseException) -> str:
    """Return the Java exception behind an error, its class and its message, as one line."""
    origin = _origin(error)
    if origin is not None:
        message = origin.getMessage() or ""
        return f"{origin.getClass().getSimpleName()}: {message}".partition("\n")[0]
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return "Spark's JVM has gone away"
    return str(error).partition("\n")[0]


def java_causes(error: BaseException) -> Iterator[Any]:
    """Yield the Java exception behind an error, and what caused it."""
    origin = _origin(error)
    for _ in range(_MAX_CAUSES):
        if origin is None:
            return
        yield origin
        origin = origin.getCause()


def first_and_last_cause(error: BaseException) -> str:
    """Return what an error of a user's own use of Spark says, without its traces, as one line.

    It has no password of a URI. Where Spark refuses a value, it has the name of the error alone:
    the text quotes the value, which is a record's.
    """
    if _origin(error) is None and isinstance(error, CapturedException):
        return _shown(_telling_line(str(error))) or type(error).__name__
    causes, hidden = [], ""
    for cause in java_causes(error):
        hidden = _condition_of_value(cause)
        if line := _telling(cause):
            causes.append(f"{cause.getClass().getSimpleName()}: {line}")
        if hidden:
            break  # what is behind it quotes the value too
    if not causes:
        return _shown(first_line(error))
    first, last = (_shown(one, hidden) for one in (causes[0], causes[-1]))
    return first if last.partition(": ")[2] in first else f"{first}; caused by {last}"


def _condition_of_value(cause: Any) -> str:
    """Return the name of Spark's for an error of a value; empty where it is another one."""
    condition = _CONDITION.match(cause.getMessage() or "")
    if condition is None:
        return ""
    try:
        state = cause.getSqlState() or ""
    except Py4JError:  # it only looks like an error of Spark's
        return ""
    return condition[0] if state.startswith(_DATA_EXCEPTION) else ""


def _shown(line: str, hidden: str = "") -> str:
    if hidden:
        before, found, _ = line.partition(hidden)
        line = before + found
    return redact(line)[:_MAX_MESSAGE]


def _telling(cause: Any) -> str:
    """Return what an exception of Java says: all of it, without a plan, where it is of analysis."""
    if not _is_a(cause, (_ANALYSIS,)):
        return _telling_line(cause.getMessage() or "")
    return " ".join(str(cause.getSimpleMessage()).split())[:_MAX_MESSAGE]


def _telling_line(message: str) -> str:
    """Return the first line; the last one before a trace of Java where the first announces it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines or not lines[0].endswith(":"):
        return lines[0] if lines else ""
    told = [line for line in lines if not line.endswith(":") and not line.startswith(_TRACE)]
    return told[-1] if told else ""


def _is_a(throwable: Any, class_names: Collection[str]) -> bool:
    kind = throwable.getClass()
    while kind is not None:
        if kind.getName() in class_names:
            return True
        kind = kind.getSuperclass()
    return False


def _origin(error: BaseException) -> Any:
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None)


def require_class(spark: SparkSession, name: str, remedy: str) -> None:
    """Raise SetupError where no jar of a session has a class.

    `remedy` is what the sink needs and how to get it, as it follows "the sink needs".
    """
    try:
        jvm(spark).org.apache.spark.util.Utils.classForName(name, False, False)  # noqa: FBT003
    except JAVA_ERRORS as error:
        if has_gone(error):
            raise
        raise SetupError(f"this Spark has no class {name}; the sink needs {remedy}") from error


def require_extension(spark: SparkSession, extension: str, remedy: str) -> None:
    """Raise SetupError where a session lacks an extension of Spark's SQL; see `require_class`."""
    require_class(spark, extension, remedy)
    if extension not in str(spark.conf.get("spark.sql.extensions", "")).split(","):
        raise SetupError(f"spark.sql.extensions does not name {extension}; the sink needs {remedy}")
