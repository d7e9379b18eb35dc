"""The reader of a shuffle with one mistake in it, of which a person could make each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fanout.core.drain import Basket
from fanout.core.opening import _resumed
from fanout.core.watermarks import Watermarks
from fanout.kafka.connection import KafkaConnection
from fanout.kafka.shuffle.batch_cutter import BatchCutter
from fanout.kafka.shuffle.producers import Producers
from fanout.kafka.shuffle.reader import ShuffleReader, producers_at
from tests.provers.planted.bugs import Change, Edit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("SHUFFLE_BUGS",)


def _getter(owner: type, name: str) -> Callable[..., Any]:
    """Return the function of a property."""
    function: Callable[..., Any] = vars(owner)[name].fget
    return function


_STATE: Final = "position.state if isinstance(position, Cursor) else"
_ADVANCE: Final = "if least is None or producer.watermark < least:"

SHUFFLE_BUGS: Final[dict[str, Change]] = {
    "the state is not restored with the position": (
        Edit(producers_at, _STATE, "'' if isinstance(position, Cursor) else"),
    ),
    "a subscription begins without the state of its position": (
        Edit(ShuffleReader.__init__, "producers_at(position)", "Producers.unknown()"),
    ),
    "the watermark is the highest of the producers": (
        Edit(Producers._advance, _ADVANCE, _ADVANCE.replace("<", ">")),
    ),
    "the watermark of the stream is the highest of the partitions": (
        Edit(Watermarks._advance, "min(counting", "max(counting"),
    ),
    "the stream that goes on has no watermark until something comes": (
        Edit(_resumed, "progress.watermarks.restore()", "pass"),
    ),
    "a producer that has not spoken is not waited for": (
        Edit(
            Producers._advance,
            "if not self._complete:",
            "if self.announced is None:",
        ),
    ),
    "a producer without a watermark is not waited for": (
        Edit(
            Producers._advance,
            "if producer.watermark is None:\n                return",
            "if producer.watermark is None:\n                continue",
        ),
    ),
    "an older generation moves the watermark": (
        Edit(
            Producers.apply,
            "            self.outdated += 1\n            return False\n",
            "            self.outdated += 1\n",
        ),
    ),
    "the producers of an older generation are not forgotten": (
        Edit(Producers.apply, "            self.seen = {}\n", ""),
    ),
    "a new generation begins with its own watermark": (
        Edit(
            Producers._advance,
            "(self.watermark is None or least > self.watermark)",
            "True",
        ),
    ),
    "an idle producer holds the watermark back": (
        Edit(Producers._update, "producer.activity = Activity.IDLE", "pass"),
    ),
    "a producer that has ended holds the watermark back": (
        Edit(Producers._update, "producer.activity = Activity.ENDED", "pass"),
    ),
    "a producer that was idle is left out for ever": (
        Edit(
            Producers._update,
            "        producer.activity = Activity.ACTIVE",
            "        if producer.activity is not Activity.IDLE:\n"
            "            producer.activity = Activity.ACTIVE",
        ),
    ),
    "a watermark that is repeated lowers that of its producer": (
        Edit(
            Producers._update,
            "producer.watermark is not None and millis <= producer.watermark",
            "False",
        ),
    ),
    "what is aborted is read": (
        Edit(
            KafkaConnection.__init__,
            'options.isolation_level == "read_committed"',
            "False",
        ),
    ),
    "a watermark is told before the records that it comes behind": (
        Edit(
            BatchCutter.cut,
            "            if row > piece.end and piece.has_control:\n"
            "                yield self._batch(piece, piece.last_offset)\n"
            "                piece = _Piece(batch, piece.end)\n"
            "            try:\n"
            "                frame = decode_control(value)\n"
            "                if self._producers.apply(frame):\n"
            "                    self._on_frame(frame)\n",
            "            try:\n"
            "                frame = decode_control(value)\n"
            "                if self._producers.apply(frame):\n"
            "                    self._on_frame(frame)\n"
            "                if row > piece.end and piece.has_control:\n"
            "                    yield self._batch(piece, piece.last_offset)\n"
            "                    piece = _Piece(batch, piece.end)\n",
        ),
    ),
    "a batch that is cut has no state": (
        Edit(Basket._cut, "if isinstance(batch.range.after, Cursor):", "if False:"),
    ),
    "a batch that is cut has the watermark of its end": (
        Edit(Basket._cut, "            watermark=None,\n", ""),
    ),
    "the state is that of the beginning of a piece": (
        Edit(
            BatchCutter._move,
            "Cursor(last_offset, state=state)",
            "Cursor(last_offset, state=getattr(after, 'state', ''))",
        ),
    ),
    "a producer that is silent is never left out": (
        Edit(ShuffleReader._leave_out, "if not silent:", "if True:"),
    ),
    "a producer that has never spoken is never left out": (
        Edit(
            _getter(Producers, "awaited"), "number not in self.seen or", "number in self.seen and"
        ),
    ),
    "a producer that was silent is left out for ever": (
        Edit(
            Producers._update,
            "        producer.activity = Activity.ACTIVE",
            "        if producer.activity is not Activity.LEFT_OUT:\n"
            "            producer.activity = Activity.ACTIVE",
        ),
    ),
    "the partition ends with its first producer": (
        Edit(_getter(Producers, "ended"), "and all(", "and any("),
    ),
}
