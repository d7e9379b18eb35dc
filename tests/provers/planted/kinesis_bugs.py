"""The core and the reader of Kinesis with one mistake in it, of which a person could make each.

Each mistake changes one or two functions. Those of KINESIS_BUGS break a promise; those of HARMLESS
look as bad, and break none.
"""

from __future__ import annotations

import ast
import asyncio
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from fanout.core.backoff import FullJitter, Pacing, Retries
from fanout.core.cancellation import TaskScope
from fanout.core.checkpoint import _CursorWire, to_wire
from fanout.core.drain import Basket
from fanout.core.events import Batch, startable
from fanout.core.fan_out import FanOut
from fanout.core.limits import MemoryLimit, SubscribeLimit
from fanout.core.lineage import Lineage
from fanout.core.opening import open_lineage
from fanout.core.positions import WHOLE_RECORD, Timestamp, reaches
from fanout.core.progress import Progress, SplitProgress
from fanout.core.slot import Slot
from fanout.core.subscriber import Subscriber
from fanout.core.subscribers import Subscribers
from fanout.core.subscription import Subscription, Watchdog
from fanout.kinesis.reading.decode import cursor_after
from fanout.kinesis.reading.shard_reader import ShardReader, _rows_read, _unconfirmed_end
from fanout.kinesis.starting_position import starting_position
from tests.provers.planted.edits import (
    ANY,
    Edit,
    arguments,
    before,
    call,
    called,
    case_of,
    constant,
    drop,
    field_of,
    has,
    node,
    on,
    statement,
    with_body,
    with_test,
    with_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.events import End
    from fanout.kinesis.reading.decode import ShardEvent
    from tests.provers.planted.edits import Change, Step

__all__ = ("HARMLESS", "KINESIS_BUGS")


def _evict(slot: Slot) -> None:
    slot._event = None


def _evict_of(subscriber: Subscriber) -> None:
    subscriber.slot._event = None


def _advance(subscriber: Subscriber, event: Batch | End) -> None:
    if isinstance(event, Batch):
        subscriber._advance(event.range.until)


async def _put_under_a_watchdog(subscriber: Subscriber, event: Batch | End, reserved: int) -> None:
    _advance(subscriber, event)
    async with asyncio.timeout(subscriber._connection.pacing.silence_timeout):
        await subscriber.slot.put(event, reserved)


def _with_records_only(match: ast.Match) -> ast.Match:
    (batch,) = [each for each in match.cases if case_of(Batch)(each)]
    batch.guard = call(_num_records, match.subject)
    return match


def _num_records(batch: Batch) -> int:
    return batch.num_records


def _after_any_parent(made: ast.Call) -> ast.expr:
    """Put `not parents or any(...)` in place of `all(...)`."""
    (parents,) = made.args
    assert isinstance(parents, ast.GeneratorExp)
    no_parents = ast.UnaryOp(ast.Not(), parents.generators[0].iter)
    return ast.BoolOp(ast.Or(), [no_parents, ast.Call(ast.Name("any", ast.Load()), [parents], [])])


def _keep_open(subscription: Subscription) -> AsyncExitStack:
    stack = AsyncExitStack()
    vars(subscription._connection).setdefault("kept", []).append(stack)
    return stack


def _never_closed(block: ast.AsyncWith) -> list[ast.stmt]:
    stack = block.items[0].optional_vars
    assert stack is not None
    return [ast.Assign([stack], call(_keep_open, "self")), *block.body]


@contextmanager
def _left_open(subscription: Subscription, stack: AsyncExitStack) -> Iterator[None]:
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        if not isinstance(error, Exception):
            vars(subscription._connection)["kept"] = stack.pop_all()
        raise


def _open_if_cancelled(block: ast.AsyncWith) -> ast.AsyncWith:
    stack = block.items[0].optional_vars
    *before, yielding = block.body
    kept = ast.withitem(call(_left_open, "self", stack))
    block.body = [*before, ast.With([kept], [yielding])]
    return block


def _pausing(loop: ast.While) -> ast.While:
    pause = call(asyncio.sleep, ast.Constant(0))
    loop.body = [ast.Expr(ast.Await(pause)), *loop.body]
    return loop


def _without_sub(made: ast.Call) -> ast.Call:
    sequence, _, state = made.args
    made.args = [sequence, ast.Constant(WHOLE_RECORD), state]
    return made


def _one_more(made: ast.Call) -> ast.Call:
    made.args = [ast.BinOp(made.args[0], ast.Add(), ast.Constant(1))]
    return made


def _delivered_for_acknowledged(made: ast.Call) -> ast.Call:
    """Store the position that `ended` compares the acknowledged one with."""
    split, _, ended, newest = made.args
    assert isinstance(ended, ast.BoolOp)
    compared = ended.values[1]
    assert isinstance(compared, ast.Compare)
    made.args = [split, compared.comparators[0], ended, newest]
    return made


def _without_ended(splits: ast.GeneratorExp) -> ast.GeneratorExp:
    assert isinstance(splits.elt, ast.Call)
    ended = splits.elt.args[2]
    assert isinstance(ended, ast.BoolOp)
    splits.generators[0].ifs.append(ast.UnaryOp(ast.Not(), ended.values[0]))
    return splits


def _released_at_the_end(block: ast.With) -> list[ast.stmt]:
    return [block.body[-1], ast.Expr(call(_release_turn, "self"))]


def _release_turn(limit: SubscribeLimit) -> None:
    limit._free.release()


def _ended_or_parent(event: ShardEvent) -> bool:
    return bool(event.ended or event.children)


def _end_of_children(both: ast.BoolOp) -> ast.BoolOp:
    ended = both.values[0]
    assert isinstance(ended, ast.Attribute)
    both.values[0] = call(_ended_or_parent, ended.value)
    return both


def _is_a_time(checkpoint: Checkpoint) -> bool:
    return all(isinstance(state.position, Timestamp) for state in checkpoint.splits.values())


def _or_a_time(unset: ast.Compare) -> ast.expr:
    return ast.BoolOp(ast.Or(), [unset, call(_is_a_time, unset.left)])


_HALF_AN_END: Final = node(ast.Assign, value=node(ast.BoolOp))
_HANDLED: Final = node(ast.ExceptHandler, type=node(ast.Name, id=Exception.__name__))


def _not_kept(interval: str) -> Step:
    kept = has(node(ast.Attribute, attr=field_of(Pacing, interval)))
    return on(node(ast.BinOp, op=ast.Add, right=kept), constant(0.0))


KINESIS_BUGS: Final[dict[str, Change]] = {
    "an error evicts the buffered event": (
        Edit(
            Subscriber._subscription,
            on(_HANDLED, with_body(lambda body: [ast.Expr(call(_evict_of, "self")), *body])),
        ),
    ),
    "the pill evicts the buffered event": (
        Edit(Slot.fail, on(node(ast.Assign), before(call(_evict, "self")))),
    ),
    "no watchdog looks for silence": (
        Edit(Subscription.__init__, on(called(Watchdog, keywords=[ANY]), arguments(1e9))),
    ),
    "the watchdog wraps the hand-off": (
        Edit(
            Subscriber._deliver,
            on(called(Slot.put), lambda put: call(_put_under_a_watchdog, "self", *put.args)),
        ),
    ),
    "the position is not advanced by idle progress": (
        Edit(Subscriber._deliver, on(node(ast.Match), _with_records_only)),
    ),
    "a subscription resumes at a record, not after it": (
        Edit(starting_position, on(node(ast.IfExp), lambda side: side.orelse)),
    ),
    "a child is read before its parents": (
        Edit(startable, on(node(ast.BoolOp, op=ast.Or), lambda either: either.values[1].values[1])),
    ),
    "a child is read after one of two parents": (
        Edit(startable, on(called(all), _after_any_parent)),
    ),
    "new splits are not reported": (
        Edit(Lineage.finish, on(statement(Lineage._know), drop)),
        Edit(Lineage.discover, on(statement(Lineage._learn), drop)),
    ),
    "a wait is never reset": (
        Edit(Retries.progressed, on(node(ast.Assign, value=node(ast.Constant, value=0)), drop)),
    ),
    "waits never grow": (
        Edit(Retries.wait, on(called(FullJitter.delay, args=[ast.BinOp]), arguments(0))),
    ),
    "no spacing after a subscribe call that succeeded": (Edit(Retries.wait, _not_kept("spacing")),),
    "no floor between subscribe calls": (Edit(Retries.wait, _not_kept("floor")),),
    "the old subscription is not closed before the new one": (
        Edit(Subscription.open, on(node(ast.AsyncWith), _never_closed)),
    ),
    "a subscription is left open on cancellation": (
        Edit(Subscription.open, on(node(ast.AsyncWith), _open_if_cancelled)),
    ),
    "a batch is lost when its hand-off is cancelled": (
        Edit(FanOut.__anext__, on(node(ast.While, test=has(ast.NamedExpr)), _pausing)),
    ),
    "a cancelled drain forgets what it has collected": (
        Edit(FanOut.drain, on(statement(Subscribers.give_back), drop)),
    ),
    "an aggregated record is read again as a whole": (
        Edit(_rows_read, on(node(ast.Return, value=ast.BinOp), with_value(constant(0)))),
    ),
    "a batch is cut behind the whole aggregated record": (
        Edit(cursor_after, on(node(ast.If), with_test(constant(value=False)))),
    ),
    "a stored position has no sub-sequence number": (
        Edit(to_wire, on(called(_CursorWire), _without_sub)),
    ),
    "a batch is cut one row too late": (
        Edit(
            Basket._cut,
            on(
                node(ast.Call, func=node(ast.Attribute, value=ast.Attribute), args=[ast.Name]),
                _one_more,
            ),
        ),
    ),
    "acknowledging one batch acknowledges everything delivered": (
        Edit(
            SplitProgress._acknowledge,
            on(node(ast.If, test=called(reaches)), with_test(constant(value=True))),
        ),
    ),
    "a checkpoint has delivered positions": (
        Edit(
            Progress.acknowledged, on(node(ast.Call, args=[ANY] * 4), _delivered_for_acknowledged)
        ),
    ),
    "a checkpoint forgets the splits that have ended": (
        Edit(Progress.acknowledged, on(node(ast.GeneratorExp), _without_ended)),
    ),
    "a gap is not reported": (Edit(Subscriber._skip, on(node(ast.AugAssign), drop)),),
    "an error ends a subscriber silently": (
        Edit(Subscriber.run, on(_HANDLED, with_body(lambda _: [ast.Pass()]))),
    ),
    "a split that has failed does not fail the stream": (
        Edit(Subscribers._on_ready, on(statement(Subscribers.fail), drop)),
    ),
    "a failure does not stop the other splits": (
        Edit(Subscribers.fail, on(statement(TaskScope.cancel), drop)),
    ),
    "a subscribe call that fails keeps its turn": (
        Edit(SubscribeLimit.turn, on(node(ast.With), _released_at_the_end)),
    ),
    "memory of an interrupted event stays reserved": (
        Edit(Subscription.open, on(statement(MemoryLimit.release), drop)),
    ),
    "a timer is left behind": (Edit(Watchdog.__aexit__, on(statement(Watchdog.close), drop)),),
    "the timer of silence is left behind": (
        Edit(Subscription.open, on(statement(Watchdog.close), drop)),
    ),
    "the discovery ends at its first failure": (
        Edit(Lineage.discover, on(node(ast.Continue), lambda _: ast.Return())),
    ),
    "half an end is believed": (
        Edit(ShardReader.read, on(_HALF_AN_END, with_value(lambda both: both.values[0]))),
    ),
    "child shards are taken for the end of their parent": (
        Edit(
            _unconfirmed_end,
            on(
                node(ast.If, test=node(ast.BoolOp, values=[ast.UnaryOp, ANY])),
                with_test(constant(value=False)),
            ),
        ),
        Edit(ShardReader.read, on(_HALF_AN_END, with_value(_end_of_children))),
    ),
    "a damaged frame is dropped silently": (
        Edit(ShardReader.drop, on(node(ast.If), lambda _: ast.Return())),
    ),
    "latest is resolved again until a record has come": (
        Edit(open_lineage, on(node(ast.If, test=ast.Compare), with_test(_or_a_time))),
    ),
}

HARMLESS: Final[dict[str, Change]] = {
    # Only a cancellation interrupts the hand-off, and after it no subscriber resumes from here.
    "the position is advanced before the hand-off": (
        Edit(
            Subscriber._deliver,
            on(
                statement(Slot.put),
                lambda put: [
                    ast.Expr(call(_advance, "self", put.value.value.args[0])),
                    put,
                ],
            ),
        ),
    ),
    # The listing, for which an end asks at once, names them too.
    "children are not learnt from the end of their parent": (
        Edit(Lineage.finish, on(statement(Lineage._know), drop)),
    ),
    # The end has named them already.
    "the end of a split does not hurry the next listing": (
        Edit(Lineage.finish, on(statement(asyncio.Event.set), drop)),
    ),
}
