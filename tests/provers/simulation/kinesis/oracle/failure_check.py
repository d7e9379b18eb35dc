"""Check that a stream failed only where it had to, says why, and stays failed."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from fanout.errors import FanOutError, ServiceError, SplitFailedError
from fanout.kinesis.aws.error_hints import code_of
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kinesis.oracle.subscribe_attempts import limit_of

if TYPE_CHECKING:
    from fanout.core.fan_out import FanOut
    from fanout.kinesis.options import KinesisOptions
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.job.world import SourceWorld

__all__ = ("check_kinesis_failure", "check_stays_failed")

# How many seconds a stream that has failed has to close its subscriptions.
_PROMPT: Final = 1.0
# What a reader says of a stream or a consumer that is no more.
_OF_AN_END: Final = ("ResourceNotFoundException", "gone", "deleted", "another stream", "belong to")
_SHARD: Final = re.compile(r"shardId-\d{12}")


def check_kinesis_failure(
    failure: FanOutError, run: ProcessRun, options: KinesisOptions, now: float, *, gone: bool
) -> None:
    """Check that a stream has failed of something that makes it fail, and names that.

    Args:
        failure: The error of the stream.
        run: What the service did to it.
        options: The options of the user.
        now: When, in virtual seconds.
        gone: Whether no reader can go on.

    Raises:
        OracleError: If it has failed without a cause, or names another one.
    """
    cause = failure.__cause__
    if why := _why_not(failure, cause, run, options, now, gone=gone):
        raise OracleError(f"failed for nothing: {failure} ({why})") from failure


async def check_stays_failed(
    stream: FanOut, failure: FanOutError, run: ProcessRun, world: SourceWorld
) -> None:
    """Check that a stream that has failed has stopped, and goes on failing of the same.

    Args:
        stream: What has failed.
        failure: The error of the stream.
        run: The process that reads it.
        world: What knows the subscriptions of the process.

    Raises:
        OracleError: If it is still subscribed, fails of something else, or delivers.
    """
    await asyncio.sleep(_PROMPT)
    if run.dead:
        return
    if left := world.still_read(run):
        raise OracleError(f"still subscribed to {left} after the failure: {failure}")
    for again in (stream.__anext__, stream.drain):
        try:
            await again()
        except FanOutError as repeated:
            if repeated is failure is stream.failure:
                continue
            raise OracleError(
                f"broke a rule: another failure than {failure}: {repeated}"
            ) from repeated
        raise OracleError(f"broke a rule: something was delivered after the failure: {failure}")


def _why_not(
    failure: FanOutError,
    cause: BaseException | None,
    run: ProcessRun,
    options: KinesisOptions,
    now: float,
    *,
    gone: bool,
) -> str:
    waited = run.hung or run.hindered
    if not run.opened and waited and "did not become ACTIVE" in str(failure):
        reported = cause is not None or "did not answer" in str(failure)
        return "" if reported else "it does not say that the service did not answer"
    if gone and any(word in str(failure) for word in _OF_AN_END):
        return ""
    if not isinstance(cause, Exception):
        return "it has no cause"
    match failure:
        case SplitFailedError():
            return _why_not_shard(failure, cause, run, options, now)
        case ServiceError() if not run.opened:
            known = cause in run.refusals or run.hindered
            return "" if known else "no call was refused with its cause"
        case _:
            return "it is of no kind that may happen"


def _why_not_shard(
    failure: SplitFailedError,
    cause: Exception,
    run: ProcessRun,
    options: KinesisOptions,
    now: float,
) -> str:
    found = _SHARD.search(str(failure))
    last = run.attempts.last(found[0]) if found else None
    if found is None or last is None or last.cause is not None:
        return "it names no shard whose subscription has ended"
    if why := last.fits(cause, now, options):
        return why
    if run.refused_times and code_of(cause) == "InvalidArgumentException":
        return ""
    limit, times = limit_of(cause, options), run.attempts.repeats(found[0], cause)
    if limit is None:
        return "its cause passes"
    if times < limit:
        return f"its cause came {times} times only"
    return "" if f"{limit} times at one position" in str(failure) else "it does not say how often"
