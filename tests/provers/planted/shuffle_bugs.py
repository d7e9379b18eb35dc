"""The reader of a shuffle with one mistake in it, of which a person could make each."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

from fanout.core.drain import Basket
from fanout.core.event_time import Watermarks
from fanout.core.events import Batch
from fanout.core.opening import _resumed
from fanout.kafka.reading.kafka_source import KafkaConnection
from fanout.kafka.shuffle.frames import EndFrame, IdleFrame
from fanout.kafka.shuffle.producers import Activity, Producers
from fanout.kafka.shuffle.reader import BatchCutter, ShuffleReader, producers_at, with_producers
from tests.provers.planted.edits import (
    ANY,
    Edit,
    call,
    called,
    case_of,
    constant,
    drop,
    field_of,
    member,
    node,
    on,
    statement,
    with_body,
    with_test,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.shuffle.producers import ProducerState
    from tests.provers.planted.edits import Change, Step

__all__ = ("SHUFFLE_BUGS",)


def _without_state(state: ast.IfExp) -> ast.IfExp:
    state.body = ast.Constant("")
    return state


def _with_operator(operator: ast.cmpop) -> Callable[[Any], ast.Compare]:
    def changed(compared: ast.Compare) -> ast.Compare:
        compared.ops = [operator]
        return compared

    return changed


def _named(function: Callable[..., Any]) -> Callable[[Any], ast.Call]:
    """Call a builtin function in place of another."""

    def changed(made: ast.Call) -> ast.Call:
        made.func = ast.Name(function.__name__, ast.Load())
        return made

    return changed


def _unannounced(producers: Producers) -> bool:
    return producers.announced is None


def _but_for(activity: Activity) -> Step:
    """Let a producer that is in a state stay in it."""

    def is_in_it(producer: ProducerState) -> bool:
        return producer.activity is activity

    def guarded(assigned: ast.Assign) -> ast.If:
        (attribute,) = assigned.targets
        assert isinstance(attribute, ast.Attribute)
        return ast.If(ast.UnaryOp(ast.Not(), call(is_in_it, attribute.value)), [assigned], [])

    return on(node(ast.Assign, value=member(Activity.ACTIVE)), guarded)


def _watermark_first(rows: ast.For) -> ast.For:
    cut, attempt = rows.body[:2]
    assert isinstance(attempt, ast.Try)
    attempt.body.append(cut)
    del rows.body[0]
    return rows


def _with_state_before(made: ast.Call) -> ast.Call:
    made.args[2] = call(_producers_before, "self")
    return made


def _producers_before(cutter: BatchCutter) -> Producers:
    return producers_at(cutter._position)


def _spoken_and_active(either: ast.BoolOp) -> ast.BoolOp:
    absent, active = either.values
    return ast.BoolOp(ast.And(), [_with_operator(ast.In())(absent), active])


_NO: Final[Any] = constant(value=False)

SHUFFLE_BUGS: Final[dict[str, Change]] = {
    "the state is not restored with the position": (
        Edit(producers_at, on(node(ast.IfExp), _without_state)),
    ),
    "a subscription begins without the state of its position": (
        Edit(
            ShuffleReader.__init__,
            on(called(producers_at), lambda _: call(Producers.unknown)),
        ),
    ),
    "the watermark is the highest of the producers": (
        Edit(Producers._advance, on(node(ast.Compare, ops=[ast.Lt]), _with_operator(ast.Gt()))),
    ),
    "the watermark of the stream is the highest of the partitions": (
        Edit(Watermarks._advance, on(called(min), _named(max))),
    ),
    "the stream that goes on has no watermark until something comes": (
        Edit(_resumed, on(statement(Watermarks.restore), drop)),
    ),
    "a producer without a frame is not waited for": (
        Edit(
            Producers._advance,
            on(node(ast.If, test=ast.UnaryOp), with_test(lambda _: call(_unannounced, "self"))),
        ),
    ),
    "a producer without a watermark is not waited for": (
        Edit(
            Producers._advance,
            on(
                node(ast.If, test=ast.Compare, body=[ast.Return]),
                with_body(lambda _: [ast.Continue()]),
            ),
        ),
    ),
    "an older generation moves the watermark": (
        Edit(Producers.apply, on(node(ast.Return, value=node(ast.Constant, value=False)), drop)),
    ),
    "the producers of an older generation are not forgotten": (
        Edit(Producers.apply, on(node(ast.Assign, value=ast.Dict), drop)),
    ),
    "a new generation begins with its own watermark": (
        Edit(
            Producers._advance,
            on(
                node(ast.If, test=node(ast.BoolOp, op=ast.And)),
                with_test(lambda both: both.values[0]),
            ),
        ),
    ),
    "an idle producer holds the watermark back": (
        Edit(Producers._update, on(case_of(IdleFrame), with_body(lambda body: body[1:]))),
    ),
    "a producer that has ended holds the watermark back": (
        Edit(Producers._update, on(case_of(EndFrame), with_body(lambda body: body[1:]))),
    ),
    "a producer that was idle is left out for ever": (
        Edit(Producers._update, _but_for(Activity.IDLE)),
    ),
    "a watermark that is repeated lowers that of its producer": (
        Edit(Producers._update, on(node(ast.If), with_test(_NO))),
    ),
    "what is aborted is read": (
        Edit(KafkaConnection.__init__, on(node(ast.Compare, ops=[ast.Eq]), _NO)),
    ),
    "a watermark is reported before the records that it comes behind": (
        Edit(BatchCutter.cut, on(node(ast.For), _watermark_first)),
    ),
    "a batch that is cut has no state": (
        Edit(Basket._cut, on(node(ast.If, test=called(isinstance)), with_test(_NO))),
    ),
    "a batch that is cut has the watermark of its end": (
        Edit(
            Basket._cut,
            on(node(ast.keyword, arg=field_of(Batch, "watermark")), lambda _: None),
        ),
    ),
    "the state is that of the beginning of a piece": (
        Edit(BatchCutter._move, on(called(with_producers), _with_state_before)),
    ),
    "a producer that is silent is never left out": (
        Edit(
            ShuffleReader._leave_out,
            on(node(ast.If, body=[ast.Return]), with_test(constant(value=True))),
        ),
    ),
    "a producer that never sent a frame is never left out": (
        Edit(
            Producers.awaited,
            on(
                node(ast.BoolOp, values=[node(ast.Compare, ops=[ast.NotIn]), ANY]),
                _spoken_and_active,
            ),
        ),
    ),
    "a producer that was silent is left out for ever": (
        Edit(Producers._update, _but_for(Activity.LEFT_OUT)),
    ),
    "the partition ends with its first producer": (
        Edit(Producers.ended, on(called(all), _named(any))),
    ),
}
