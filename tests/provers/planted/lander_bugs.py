"""The coordinator and the landers with one mistake in them, of which a person could make each."""

from __future__ import annotations

import ast
import asyncio
import copy
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from fanout.core.cancellation import in_thread
from fanout.core.lineage import Lineage
from fanout.landers.coordinator import Coordinator
from fanout.landers.lander import Lander
from fanout.landers.session import LanderSession
from fanout.landing.segments.segments import SEGMENTS, SegmentFile
from tests.provers.planted.edits import (
    Edit,
    Step,
    arguments,
    before,
    call,
    called,
    drop,
    has,
    node,
    on,
    statement,
    with_test,
    with_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.events import Split
    from fanout.core.positions import Position
    from fanout.core.progress import SplitProgress
    from fanout.landing.segments.segments import OpenSegment
    from tests.provers.planted.edits import Change

__all__ = ("LANDER_BUGS", "NO_COUNT", "UNGUARDED")


def _all_of(*steps: Step) -> Step:
    """Take several steps in one function."""

    def changed(function: ast.AST) -> ast.AST:
        for step in steps:
            step.take(function)
        return function

    return on(lambda each: isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef), changed)


def _expression(text: str) -> Callable[[Any], ast.expr]:
    return lambda _: ast.parse(text, mode="eval").body


def _twice(made: ast.stmt) -> list[ast.stmt]:
    return [made, copy.deepcopy(made)]


def _without_condition(made: ast.ListComp) -> ast.ListComp:
    made.generators[0].ifs = []
    return made


def _in_another_order(made: ast.AsyncWith) -> ast.AsyncWith:
    made.items.reverse()
    return made


def _in_another_order_at_first(made: ast.FunctionDef) -> ast.FunctionDef:
    made.body[:2] = reversed(made.body[:2])
    return made


def _over(made: ast.comprehension, splits: str) -> ast.comprehension:
    made.iter = ast.parse(splits, mode="eval").body
    return made


def _if_about(attribute: str) -> Callable[[Any], bool]:
    return node(ast.If, test=has(node(ast.Attribute, attr=attribute)))


def _splits_that_go_on(coordinator: Coordinator) -> list[Split]:
    return [state.split for state in coordinator._progress if not state.ended]


def _file_that_is_published_later(
    lander: Lander, segment: OpenSegment
) -> tuple[tuple[SegmentFile, ...], None]:
    sealed = segment.seal()
    name = f"{SEGMENTS}/{sealed.path.name}"
    storage = lander._storage
    asyncio.get_running_loop().run_in_executor(None, lambda: storage.publish(sealed.path, name))
    return (SegmentFile(name=name, rows=sealed.rows, size=sealed.size),), None


def _where_its_first_lander_began(coordinator: Coordinator, state: SplitProgress) -> Position:
    began: dict[str, Position] = vars(coordinator).setdefault("_began", {})
    return began.setdefault(state.split.id, state.delivered)


def _forget_what_landed(coordinator: Coordinator, session: object) -> None:
    for landed in [each for each in coordinator._landed if each[0] is session]:
        coordinator._landed.remove(landed)


_NO_SEQ: Final = on(_if_about("seq"), drop)
NO_COUNT: Final = on(_if_about("records"), drop)
_NO_POSITION: Final = on(_if_about("after"), drop)
_ANY_OWNER: Final = on(
    node(ast.If, test=node(ast.Compare, left=ast.Call, ops=[ast.IsNot])),
    with_test(_expression("piece.split not in self._owners")),
)

LANDER_BUGS: Final[dict[str, Change]] = {
    "a lander without its coordinator reads on": (
        Edit(Lander._listen, on(called(asyncio.timeout), arguments(None))),
    ),
    "a lander reads while its last segment is published": (
        Edit(Lander.run, on(node(ast.AsyncWith), _in_another_order)),
    ),
    "a lander lands without credit": (Edit(Lander._until_credited, on(node(ast.While), drop)),),
    "a lander that comes again has credit again": (
        Edit(
            Coordinator._welcome, on(node(ast.If, test=called(all)), with_test(_expression("True")))
        ),
    ),
    "a position is that of the memory of the lander": (
        Edit(
            Lander._piece,
            on(node(ast.Attribute, attr="position"), _expression("now.delivered")),
        ),
    ),
    "a position goes back to where it was when a segment was filled": (
        Edit(
            Lander._moved_with,
            _all_of(
                on(
                    node(ast.comprehension, iter=node(ast.Name, id="parts")),
                    lambda made: _over(made, "positions.splits"),
                ),
                on(node(ast.Return), with_value(_expression("self._moved(splits, parts)"))),
            ),
        ),
    ),
    "a split has ended before its last records have landed": (
        Edit(
            Lander._piece,
            on(node(ast.keyword, arg="ended"), with_value(_expression("now.ended"))),
        ),
    ),
    "a segment is told of before it is published": (
        Edit(
            Lander._land,
            on(
                node(ast.Await, value=called(in_thread)),
                lambda _: call(_file_that_is_published_later, "self", "segment"),
            ),
        ),
    ),
    "a split is released before what was read of it has landed": (
        Edit(Lander._tell_released, on(node(ast.ListComp), _without_condition)),
        Edit(Coordinator._take_landed, NO_COUNT),
    ),
    "what a lander tells is taken in twice": (
        Edit(Lander._tell, on(statement(Lander._send), _twice)),
        Edit(Coordinator._take_landed, _all_of(_NO_SEQ, _NO_POSITION)),
    ),
    "a session that is over is listened to": (
        Edit(Coordinator._end, on(statement(LanderSession.hang_up), drop)),
        Edit(Coordinator._take_landed, _all_of(_ANY_OWNER, _NO_POSITION)),
    ),
    "a child is read before its parents have landed": (
        Edit(
            Coordinator._assign,
            on(called(Lineage.startable), lambda _: call(_splits_that_go_on, "self")),
        ),
    ),
    "the splits of a session that is over are not given away": (
        Edit(Coordinator._end, on(node(ast.For), drop)),
    ),
    "what has landed in a session that is over is forgotten": (
        Edit(
            Coordinator._end,
            on(node(ast.For), before(call(_forget_what_landed, "self", "session"))),
        ),
    ),
    "a batch has the positions of all that has landed, and not all of that": (
        Edit(
            Coordinator._take,
            _all_of(
                on(
                    called(tuple, args=[node(ast.Attribute)]),
                    _expression("(self._landed.popleft(),)"),
                ),
                on(statement(deque.clear), drop),
            ),
        ),
    ),
    "a split is assigned where its first lander began": (
        Edit(
            Coordinator._give,
            on(
                node(ast.Attribute, attr="delivered"),
                lambda _: call(_where_its_first_lander_began, "self", "state"),
            ),
        ),
    ),
    "a lander that is silent is waited for": (
        Edit(LanderSession._receive, on(called(asyncio.timeout), arguments(None))),
    ),
    "a watermark is that of the memory of the lander": (
        Edit(
            Lander._piece,
            on(node(ast.keyword, arg="watermark"), with_value(_expression("now.watermark"))),
        ),
    ),
    "a split leaves the watermark before its children are known": (
        Edit(Coordinator._advance, on(node(ast.FunctionDef), _in_another_order_at_first)),
    ),
    "reading is finished before what was read has landed": (
        Edit(
            Coordinator._finished,
            on(
                node(ast.BoolOp, values=[node(ast.Attribute, attr="_finishing"), ast.UnaryOp]),
                _expression("self._finishing"),
            ),
        ),
    ),
    "splits are assigned again when nothing is to be read any more": (
        Edit(
            Coordinator._assign,
            on(
                node(ast.BoolOp, op=ast.Or),
                _expression("self._failed or self._closed"),
            ),
        ),
    ),
    "what moves to another lander is asked for again at the end, and nothing else": (
        Edit(
            Coordinator.finish,
            on(
                node(ast.BinOp, op=ast.Sub),
                _expression("session.splits & session.releasing"),
            ),
        ),
    ),
    "two sessions have one number": (Edit(Coordinator._welcome, on(node(ast.AugAssign), drop)),),
}

# What the crash campaign finds: positions go back when a lander dies, and are not checked.
UNGUARDED: Final[Change] = (
    *LANDER_BUGS["a split is assigned where its first lander began"],
    Edit(Coordinator._take_landed, _NO_POSITION),
)
