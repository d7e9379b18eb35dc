"""The reader of Kafka with one mistake in it, of which a person could make each."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

from fanout.errors import MalformedEventError
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.hang_watch import HangWatch
from fanout.kafka.reading.commits import Committer
from fanout.kafka.reading.data_loss import DataLossCheck
from fanout.kafka.reading.fetcher import _Broker
from fanout.kafka.reading.leaders import Leaders
from fanout.kafka.reading.near_replicas import NearReplicas
from fanout.kafka.reading.offsets import OffsetResolver
from fanout.kafka.reading.record_batches import read_raw_batches
from fanout.kafka.reading.records import AbortFilter, _Part, _parts
from fanout.kafka.reading.selection import PartitionCatalog
from fanout.kafka.reading.subscription import PartitionReader, _Subscription
from fanout.kafka.reading.transport import FetchRefused, OffsetSpec, Throttled
from tests.provers.planted.edits import (
    ANY,
    Edit,
    call,
    called,
    constant,
    drop,
    has,
    member,
    node,
    on,
    statement,
    with_body,
    with_test,
    with_value,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.events import Split
    from fanout.kafka.reading.record_batches import RawBatch
    from tests.provers.planted.edits import Change

__all__ = ("KAFKA_BUGS",)


def _from_zero(compared: ast.Compare) -> ast.Compare:
    compared.comparators = [ast.Constant(0)]
    return compared


def _one_too_many(positions: ast.DictComp) -> ast.DictComp:
    positions.value = ast.parse("Cursor(position.sequence + 1)", mode="eval").body
    return positions


def _without_control(either: ast.BoolOp) -> ast.BoolOp:
    control, left_out, known = either.values
    only = ast.BoolOp(ast.And(), [left_out, ast.UnaryOp(ast.Not(), control)])
    return ast.BoolOp(ast.Or(), [only, known])


def _behind_its_records(made: ast.Call) -> ast.Call:
    (next_one,) = made.args
    assert isinstance(next_one, ast.Attribute)
    made.args = [call(_offset_by_number, next_one.value)]
    return made


def _offset_by_number(batch: RawBatch) -> int:
    return batch.base_offset + batch.rows


def _cut_short() -> Exception:
    return MalformedEventError("cut short")


def _no_answer() -> FetchRefused:
    return FetchRefused(MalformedEventError("no answer for a partition"))


def _from_the_start_alone(compared: ast.Compare) -> ast.Compare:
    del compared.ops[1:], compared.comparators[1:]
    return compared


def _at_the_end(start: ast.IfExp) -> ast.IfExp:
    """Go on where the log ends, with which the stop is compared."""
    assert isinstance(start.test, ast.BoolOp)
    compared = start.test.values[1]
    assert isinstance(compared, ast.Compare)
    start.body = compared.comparators[0]
    return start


def _latest(edge: ast.Attribute) -> ast.Attribute:
    edge.attr = OffsetSpec.LATEST.name
    return edge


def _known(catalog: PartitionCatalog) -> Sequence[Split]:
    topics = catalog._topics or {}
    return [Partition(topic, n).split for topic in sorted(topics) for n in topics[topic]]


def _fail_never(attempt: ast.Try) -> ast.Try:
    (again,) = attempt.finalbody
    assert isinstance(again, ast.If)
    again.test = ast.Constant(value=False)
    return attempt


def _reversed(merged: ast.Dict) -> ast.Dict:
    merged.values.reverse()
    return merged


_LEFT_OUT: Final = node(
    ast.If, test=node(ast.BoolOp, op=ast.Or, values=[ANY, ANY, ANY]), body=[ANY, ANY, ast.Continue]
)
_COMPARED_ABOVE: Final = node(ast.Compare, left=ast.Name, ops=[ast.Gt])
_CHECKSUM: Final = node(ast.Compare, left=ast.Call, ops=[ast.NotEq])
_NO: Final[Any] = constant(value=False)

KAFKA_BUGS: Final[dict[str, Change]] = {
    "a batch that begins early is not trimmed": (
        Edit(_Part._trim, on(node(ast.Compare, ops=[ast.GtE]), _from_zero)),
    ),
    "a transaction that is aborted has no end": (
        Edit(AbortFilter.drops, on(statement(set.discard), drop)),
    ),
    "a transaction is aborted for all of its producer's records": (
        Edit(AbortFilter.drops, on(node(ast.While), with_test(lambda both: both.values[0]))),
    ),
    "aborted transactions are taken in the wrong order": (
        Edit(AbortFilter.__init__, on(node(ast.keyword, value=ast.Constant), with_value(_NO))),
    ),
    "aborted records are delivered": (
        Edit(_parts, on(node(ast.BoolOp, values=[ANY, called(AbortFilter.drops)]), _NO)),
    ),
    "the marker of a transaction's end is delivered": (
        Edit(_parts, on(_LEFT_OUT, with_test(_without_control))),
    ),
    "the position moves by the number of records": (
        Edit(_Part.add, on(called(_Part.cover), _behind_its_records)),
    ),
    "the position does not move over what is left out": (
        Edit(_parts, on(_LEFT_OUT, with_body(lambda body: body[1:]))),
    ),
    "a batch that is cut short is taken for damage": (
        Edit(
            read_raw_batches,
            on(
                node(ast.If, test=_COMPARED_ABOVE),
                with_body(lambda _: [ast.Raise(call(_cut_short))]),
            ),
        ),
    ),
    "checksums are not looked at": (
        Edit(
            read_raw_batches,
            on(
                node(ast.If, test=node(ast.Compare, left=ast.Call, ops=[ast.NotEq])), with_test(_NO)
            ),
        ),
    ),
    "a truncation is taken for retention": (
        Edit(
            DataLossCheck._check_offset,
            on(node(ast.Compare, ops=[ast.LtE, ast.LtE]), _from_the_start_alone),
        ),
    ),
    "a loss is declared after the answer of one broker": (
        Edit(DataLossCheck._confirmed, on(node(ast.Return), with_value(constant(value=True)))),
    ),
    "what is left after a loss is skipped": (
        Edit(DataLossCheck._lost, on(node(ast.IfExp), _at_the_end)),
    ),
    "a leader that was known once is never doubted": (
        Edit(Leaders.mark_stale, on(node(ast.Assign), drop)),
    ),
    "a partition that had nothing is never asked again": (
        Edit(
            _Broker._choose,
            on(
                node(ast.If, test=ast.BoolOp), with_test(lambda _: ast.Name("unlikely", ast.Load()))
            ),
        ),
    ),
    "a partition that appears later is read from its end": (
        Edit(PartitionReader._first_offset, on(member(OffsetSpec.EARLIEST), _latest)),
    ),
    "an idle partition says nothing": (
        Edit(
            _Subscription.batches,
            on(node(ast.Assign, targets=[ast.Name], value=ast.Name), with_value(constant(1e9))),
        ),
    ),
    "partitions are listed only once": (
        Edit(
            PartitionCatalog.refresh,
            on(
                node(ast.Return, value=node(ast.Await, value=called(PartitionCatalog._refresh))),
                with_value(lambda _: call(_known, "self")),
            ),
        ),
    ),
    "what begins at the end begins at the beginning": (
        Edit(
            OffsetResolver._look_up,
            on(node(ast.IfExp, body=member(OffsetSpec.EARLIEST)), lambda either: either.body),
        ),
    ),
    "a partition asks without a reservation": (
        Edit(_Subscription._reserve_at_least, on(node(ast.If), with_test(_NO))),
    ),
    "an offset is committed that is not acknowledged": (
        Edit(
            Committer.acknowledge,
            on(node(ast.DictComp), _one_too_many),
        ),
    ),
    "a commit that fails is forgotten": (Edit(Committer._attempt, on(node(ast.Try), _fail_never)),),
    "a commit that fails replaces a newer one": (
        Edit(
            Committer._attempt,
            on(node(ast.Dict, values=[ast.Name, ast.Attribute]), _reversed),
        ),
    ),
    "a partition whose commit is refused counts as committed": (
        Edit(
            Committer._attempt,
            on(
                node(ast.DictComp, generators=[node(ast.comprehension, ifs=[])]),
                lambda _: ast.Dict([], []),
            ),
        ),
    ),
    "a broker that throttles is asked again at once": (
        Edit(
            _Broker._round,
            on(
                node(ast.If, test=has(node(ast.Attribute, attr="_throttled_until"))),
                with_test(_NO),
            ),
        ),
    ),
    "a throttled partition is taken for a damaged answer": (
        Edit(
            _Broker._hand_out,
            on(
                node(ast.If, test=has(node(ast.Name, id=Throttled.__name__))),
                with_body(
                    lambda _: [
                        ast.Assign([ast.Name("answer", ast.Store())], call(_no_answer), lineno=1)
                    ]
                ),
            ),
        ),
    ),
    "a broker that answers at once and without records is asked without a pause": (
        Edit(_Broker._round, on(node(ast.IfExp), constant(0))),
    ),
    "a broker that its cluster misses is waited for": (
        Edit(
            HangWatch._is_gone,
            on(node(ast.Return, value=ast.BoolOp), with_value(constant(value=False))),
        ),
    ),
    "a broker that froze is watched only once": (
        Edit(HangWatch._look, on(statement(set.discard), drop)),
    ),
    "a leader is told the rack although its replica has failed": (
        Edit(
            NearReplicas.leave,
            on(node(ast.Assign), drop),
        ),
    ),
    "offsets that do not move are not stored again": (
        Edit(Committer.run, on(statement(Committer._store_again), drop)),
    ),
    "the last offsets are not committed at the end": (
        Edit(Committer.finish, on(node(ast.While), drop)),
    ),
}
