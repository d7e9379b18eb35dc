"""A landing by several processes with one mistake in it, of which a person could make each."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

from fanout.landers.coordinator import Coordinator
from fanout.landers.lander import Lander
from fanout.landers.processes import _ByProcesses
from fanout.landing.lander import Landing
from fanout.landing.log.bad_places import BadRecordPlaces
from fanout.landing.retention import sweep_files_of_landers
from fanout.landing.segments.bad_records import BadRecordFiles, _name
from fanout.landing.segments.partitions import publish_partitions
from tests.provers.planted.edits import (
    Edit,
    call,
    called,
    constant,
    drop,
    has,
    node,
    on,
    statement,
    with_test,
    with_value,
)
from tests.provers.planted.lander_bugs import NO_COUNT

if TYPE_CHECKING:
    from tests.provers.planted.edits import Change

__all__ = ("LANDING_BUGS",)


def _expression(text: str) -> Any:
    return lambda _: ast.parse(text, mode="eval").body


def _those_that_are_there(found: list[Any]) -> tuple[Any, ...]:
    made = []
    for each in found:
        try:
            made.append(each.result())
        except OSError:
            continue
    return tuple(made)


LANDING_BUGS: Final[dict[str, Change]] = {
    "bad records of landers are in no entry": (
        Edit(Landing._publish, on(called(BadRecordFiles.gather), constant(""))),
    ),
    "a lander does not tell of its bad records": (
        Edit(
            Lander._publish,
            on(
                node(ast.Tuple, elts=[ast.Call, ast.Name]),
                lambda made: ast.Tuple([made.elts[0], ast.Constant(None)], ast.Load()),
            ),
        ),
    ),
    "bad records of some landers are in no entry": (
        Edit(
            Landing._publish,
            on(
                called(BadRecordFiles.gather),
                _expression("self._bad.gather(self._storage, taken.bad[:1], number)"),
            ),
        ),
    ),
    "files of bad records are deleted that entries name": (
        Edit(
            BadRecordFiles.delete_last,
            on(called(_name), _expression("_name(self.directory, entry - 1, run - 1)")),
        ),
    ),
    "a file of bad records stays that a killed run has left": (
        Edit(BadRecordPlaces._sweep, on(statement(BadRecordFiles.delete_last), drop)),
    ),
    "what a killed run left is deleted by the run after the next": (
        Edit(BadRecordPlaces._sweep, on(node(ast.Dict), _expression("first_entries"))),
    ),
    "what landers of a killed run have staged stays": (
        Edit(
            BadRecordPlaces._former,
            on(
                node(ast.If, test=node(ast.BoolOp)),
                with_test(_expression("run is not None and run < 0")),
            ),
        ),
    ),
    "a landing and its copy share a directory of bad records": (
        Edit(
            BadRecordFiles._directory_of,
            on(
                node(ast.Assign, value=has(called("".join))),
                with_value(_expression("0")),
            ),
        ),
    ),
    "a file of a partition that is refused is left out": (
        Edit(
            publish_partitions,
            on(
                called(tuple, args=[node(ast.GeneratorExp)]),
                lambda _: call(_those_that_are_there, "found"),
            ),
        ),
        Edit(Coordinator._take_landed, NO_COUNT),
    ),
    "files of partitions stay that landers of a killed run have left": (
        Edit(
            sweep_files_of_landers,
            on(
                called(sorted, args=[node(ast.Name, id="unnamed")]),
                _expression("sorted(name for name in unnamed if '=' not in name)"),
            ),
        ),
    ),
    "a landing that is told to stop leaves what was read": (
        Edit(
            _ByProcesses.stop,
            on(statement(Coordinator.finish), lambda _: _statement("self._coordinator.stop()")),
        ),
    ),
}


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]
