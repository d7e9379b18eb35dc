"""The product with one mistake in it, of which a person could make each.

Each mistake is other words in one or two functions. Those of BUGS break a promise; those of
HARMLESS look as bad, and break none.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from fanout.core.backoff import Retries
from fanout.core.checkpoint import _to_wire
from fanout.core.drain import Basket
from fanout.core.events import startable
from fanout.core.fan_out import FanOut
from fanout.core.limits import SubscribeLimit
from fanout.core.opening import open_stream
from fanout.core.progress import Progress, SplitProgress
from fanout.core.slot import Slot
from fanout.core.subscriber import Subscriber
from fanout.core.subscription import Subscription, Watchdog
from fanout.core.supervisor import Supervisor
from fanout.kinesis.reading.shard_reader import ShardReader, _doubt, _rows_read
from fanout.kinesis.reading.subscription import starting_position
from fanout.kinesis.source import KinesisSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("BUGS", "HARMLESS", "Change", "Edit")


@final
@dataclass(frozen=True)
class Edit:
    """Other words in one function.

    Args:
        function: The function, however it is decorated.
        was: What it says, once.
        becomes: What it says instead.
    """

    function: Callable[..., Any]
    was: str
    becomes: str

    @contextmanager
    def made(self) -> Iterator[None]:
        """Let the function say the other words within the block, for everybody who has it."""
        function: Any = inspect.unwrap(self.function)
        before = function.__code__
        function.__code__ = self._code(function)
        try:
            yield
        finally:
            function.__code__ = before

    def _code(self, function: Any) -> CodeType:
        text = inspect.getsource(function)
        assert text.count(self.was) == 1, f"{function.__qualname__} does not say: {self.was}"
        module = compile(
            textwrap.dedent(text.replace(self.was, self.becomes)),
            f"<{function.__qualname__}, changed>",
            "exec",
            flags=__future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        return next(
            code
            for code in module.co_consts
            if isinstance(code, CodeType) and code.co_name == function.__name__
        )


Change: TypeAlias = tuple[Edit, ...]

BUGS: Final[dict[str, Change]] = {
    "an error evicts the buffered event": (
        Edit(
            Subscriber._subscription,
            "_forget_locals(error)\n            if",
            "_forget_locals(error)\n            self.slot._event = None\n            if",
        ),
    ),
    "the pill evicts the buffered event": (
        Edit(
            Slot.fail,
            "self._pill = pill\n",
            "self._event, self._pill = None, pill\n",
        ),
    ),
    "no watchdog looks for silence": (
        Edit(Subscription.receive, "Watchdog(silence)", "Watchdog(1e9)"),
    ),
    "the watchdog wraps the hand-off": (
        Edit(
            Subscriber._deliver,
            "        await self.slot.put(event, subscription.reserved)\n",
            "        if isinstance(event, Batch):\n"
            "            self._advance(event.range.until)\n"
            "        async with asyncio.timeout(self._connection.pacing.silence_timeout):\n"
            "            await self.slot.put(event, subscription.reserved)\n",
        ),
    ),
    "the position is not advanced by idle progress": (
        Edit(
            Subscriber._deliver,
            "            case Batch():\n",
            "            case Batch() if event.num_records:\n",
        ),
    ),
    "a subscription resumes at a record, not after it": (
        Edit(starting_position, '"AFTER" if sub == WHOLE_RECORD else "AT"', '"AT"'),
    ),
    "a child is read before its parents": (
        Edit(
            startable,
            "parent in finished or (parent not in splits and split.id in listed)",
            "split.id in listed",
        ),
    ),
    "a child is read after one of two parents": (
        Edit(startable, "if all(", "if not split.parents or any("),
    ),
    "nobody learns of new splits": (
        Edit(Supervisor._finish, "        self._know(end.children)\n", ""),
        Edit(Supervisor._discover, "self._learn(splits)", "pass"),
    ),
    "a wait is never reset": (Edit(Retries.progressed, "self.failures = 0", "pass"),),
    "waits never grow": (
        Edit(Retries.wait, "self._jitter.delay(self.failures - 1)", "self._jitter.delay(0)"),
    ),
    "no spacing after a subscribe call that succeeded": (
        Edit(Retries.wait, "pacing.floor, pause, self._spacing_left()", "pacing.floor, pause"),
    ),
    "no floor between subscribe calls": (Edit(Retries.wait, "pacing.floor, pause,", "pause,"),),
    "the old subscription is not closed before the new one": (
        Edit(
            Subscription.open,
            "async with AsyncExitStack() as stack:\n",
            "stack = AsyncExitStack()\n"
            "            vars(self._connection).setdefault('kept', []).append(stack)\n"
            "            if True:\n",
        ),
    ),
    "a subscription is left open on cancellation": (
        Edit(
            Subscription.open,
            "                yield\n",
            "                try:\n"
            "                    yield\n"
            "                except GeneratorExit:\n"
            "                    raise\n"
            "                except BaseException as error:\n"
            "                    if not isinstance(error, Exception):\n"
            "                        vars(self._connection)['kept'] = stack.pop_all()\n"
            "                    raise\n",
        ),
    ),
    "a batch is lost when its hand-off is cancelled": (
        Edit(
            FanOut.__anext__,
            "                while (event := self._take()) is not None:\n",
            "                while (event := self._take()) is not None:\n"
            "                    await asyncio.sleep(0)\n",
        ),
    ),
    "a cancelled drain forgets what it has collected": (
        Edit(
            FanOut.drain,
            "                self._returned.extendleft(reversed(basket.events))\n",
            "",
        ),
    ),
    "an aggregated record is read again as a whole": (
        Edit(_rows_read, "return position.sub + 1", "return 0"),
    ),
    "a batch is cut behind the whole aggregated record": (
        Edit(KinesisSource.cursor, "if following == [number]:", "if not number:"),
    ),
    "a stored position has no sub-sequence number": (
        Edit(_to_wire, "str(sequence), sub, state)", "str(sequence), state=state)"),
    ),
    "a batch is cut one row too late": (
        Edit(Basket._cut, "records.slice(rows)", "records.slice(rows + 1)"),
    ),
    "acknowledging one batch acknowledges everything delivered": (
        Edit(
            SplitProgress._acknowledge,
            "        if reaches(position, self.records_until):\n            position",
            "        if True:\n            position",
        ),
    ),
    "a checkpoint has delivered positions": (
        Edit(
            Progress.acknowledged,
            "                split.acknowledged,\n                split.ended",
            "                split.delivered,\n                split.ended",
        ),
    ),
    "a checkpoint forgets the splits that have ended": (
        Edit(
            Progress.acknowledged,
            "            for split in self\n",
            "            for split in self\n            if not split.ended\n",
        ),
    ),
    "a gap is not told": (
        Edit(
            Subscriber._skip,
            "        self._gaps += (Gap(self.position, verdict.to, verdict.reason),)\n",
            "",
        ),
    ),
    "an error ends a subscriber without a word": (
        Edit(
            Subscriber.run,
            "            self._fail(error)\n        finally",
            "            pass\n        finally",
        ),
    ),
    "a split that has failed does not fail the stream": (
        Edit(Supervisor._on_ready, "self._fail(slot.pill.error)", "pass"),
    ),
    "a failure does not stop the other splits": (
        Edit(
            Supervisor._fail,
            "            self._changed.set()\n            self._stop()\n",
            "            self._changed.set()\n",
        ),
    ),
    "a subscribe call that fails keeps its turn": (
        Edit(
            SubscribeLimit.turn,
            "            turn.callback(self._free.release)\n"
            "            given_up = asyncio.get_running_loop().call_later(_PATIENCE, turn.close)\n"
            "            turn.callback(given_up.cancel)\n"
            "            yield\n",
            "            yield\n            self._free.release()\n",
        ),
    ),
    "memory of an interrupted event stays reserved": (
        Edit(
            Subscription.open,
            "            self._memory_limit.release(self.reserved)\n",
            "",
        ),
    ),
    "a timer is left behind": (Edit(Watchdog.__aexit__, "        self._stop()\n", ""),),
    "the discovery ends at its first failure": (
        Edit(
            Supervisor._discover,
            "                continue\n",
            "                return\n",
        ),
    ),
    "half an end is believed": (
        Edit(ShardReader.read, "event.ended and self.doubt is None", "event.ended"),
    ),
    "child shards are taken for the end of their parent": (
        Edit(_doubt, "    if not event.ended and event.children:\n", "    if False:\n"),
        Edit(
            ShardReader.read,
            "event.ended and self.doubt is None",
            "bool(event.ended or event.children) and self.doubt is None",
        ),
    ),
    "a damaged frame is dropped without a word": (
        Edit(
            ShardReader.drop,
            "        if not self._droppable:\n",
            "        if True:\n            return\n        if not self._droppable:\n",
        ),
    ),
    "latest is resolved again until a record has come": (
        Edit(
            open_stream,
            "if checkpoint is None:",
            "if checkpoint is None or all(\n"
            "            type(state.position).__name__ == 'Timestamp'\n"
            "            for state in checkpoint.splits.values()\n"
            "        ):",
        ),
    ),
}

HARMLESS: Final[dict[str, Change]] = {
    # Only a cancellation interrupts the hand-off, and after it nobody resumes from this position.
    "the position is advanced before the hand-off": (
        Edit(
            Subscriber._deliver,
            "        await self.slot.put(event, subscription.reserved)\n",
            "        if isinstance(event, Batch):\n"
            "            self._advance(event.range.until)\n"
            "        await self.slot.put(event, subscription.reserved)\n",
        ),
    ),
    # The listing, for which an end asks at once, names them too.
    "children are not learnt from the end of their parent": (
        Edit(Supervisor._finish, "        self._know(end.children)\n", ""),
    ),
    # The end has named them already.
    "the end of a split does not hurry the next listing": (
        Edit(Supervisor._finish, "        self._relist.set()\n", ""),
    ),
}
