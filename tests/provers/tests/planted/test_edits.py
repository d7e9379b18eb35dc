from __future__ import annotations

import ast

import pytest

from fanout.core.slot import Slot
from tests.provers.planted.edits import (
    Edit,
    PlantError,
    call,
    called,
    constant,
    drop,
    field_of,
    node,
    on,
    statement,
    with_value,
)
from tests.provers.planted.hunt import CHANGES
from tests.provers.planted.tested_bugs import TESTED_BUGS
from tests.provers.simulation.kafka.faults import KafkaFault

pytestmark = pytest.mark.regression


class Counter:
    def __init__(self) -> None:
        self.seen = 0

    def add(self, number: int) -> int:
        self.note(number)
        return max(number, 0)

    def note(self, number: int) -> None:
        self.seen += number


def twice(counter: Counter, number: int) -> int:
    return 2 * number + counter.seen


def test_a_statement_is_left_out_within_the_block() -> None:
    counter = Counter()
    with Edit(Counter.add, on(statement(Counter.note), drop)).made():
        assert counter.add(2) == 2
    assert counter.seen == 0

    counter.add(2)

    assert counter.seen == 2


def test_a_function_of_the_tests_is_called_in_place_of_another_one() -> None:
    counter = Counter()
    change = on(called(max), lambda made: call(twice, "self", made.args[0]))

    with Edit(Counter.add, change).made():
        assert counter.add(3) == 9


@pytest.mark.parametrize("change", [on(node(ast.While), drop), on(node(ast.Name), drop)])
def test_a_node_that_is_not_found_exactly_once_is_an_error(change: object) -> None:
    with pytest.raises(PlantError, match=r"Counter\.add is not as expected: \d nodes fit"):
        Edit(Counter.add, change).check()  # type: ignore[arg-type]


def test_a_node_that_is_built_otherwise_is_an_error() -> None:
    change = on(node(ast.Return), with_value(lambda made: made.elts[0]))

    with pytest.raises(PlantError, match="has no attribute 'elts'"):
        Edit(Counter.add, change).check()


def test_a_property_is_changed_too() -> None:
    slot = Slot(lambda _: None)

    with Edit(Slot.occupied, on(node(ast.Compare), constant(value="changed"))).made():
        assert str(slot.occupied) == "changed"
    assert not slot.occupied


def test_a_field_is_named_that_there_is() -> None:
    assert field_of(KafkaFault, "at") == "at"
    with pytest.raises(PlantError, match="KafkaFault has no field when"):
        field_of(KafkaFault, "when")


@pytest.mark.parametrize("name", CHANGES)
def test_every_planted_bug_fits_the_library(name: str) -> None:
    for edit in CHANGES[name]:
        edit.check()


@pytest.mark.parametrize("name", TESTED_BUGS)
def test_every_bug_that_a_test_finds_fits_the_library(name: str) -> None:
    for edit in TESTED_BUGS[name].change:
        edit.check()
