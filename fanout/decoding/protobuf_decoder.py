"""`decode=Protobuf(descriptor, "shop.Order")`, also with `registry=SchemaRegistry(url)`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, final

import numpy as np
import pyarrow as pa

from fanout.core.option_checks import one_of
from fanout.core.sentence import Option
from fanout.decoding.avro_cursors import Cursors
from fanout.decoding.decoder import Decoder
from fanout.decoding.protobuf_schema import Planner, descriptor_set, find_message, names_at
from fanout.decoding.registry import SchemaRegistry
from fanout.errors import OptionError

if TYPE_CHECKING:
    import os

    from fanout.decoding.avro_cursors import Ints
    from fanout.decoding.protobuf_columns import Messages
    from fanout.decoding.registry import Schemas

_KIND: Final = "PROTOBUF"
_HEAD: Final = 5
_MOST_INDEXES: Final = 16
_NO_FRAME: Final = "it does not begin with 0, the id of a schema and the index of a message"


@final
@dataclass(frozen=True, slots=True)
class Protobuf(Decoder):
    """Decodes messages of Protobuf, as `decode=Protobuf("orders.desc", "shop.Order")`.

    The columns are the fields of the message. Fields are found by their numbers, whatever the
    message looked like that the writer had; the types are those of Spark's `from_protobuf`.

    Args:
        descriptor: What `protoc --include_imports --descriptor_set_out=FILE` writes, as bytes or as
            the path of the file; a generated class; or what `SchemaRegistry.latest` returns.
        message: The full name of the message. None for that of the class, or for the only one of
            the last file.
        registry: Where the schemas are that records name by their id, in Confluent's framing. A
            record of another message is bad.
        framing: What stands before each record: `"confluent"`, the default with a registry: 0, the
            id of a schema, and the index of a message; or `"none"`, the default without one.
        times: Whether `Timestamp` and `Duration` become times of microseconds, so that finer ones
            are bad. False leaves them structs of `seconds` and `nanos`.

    Raises:
        OptionError: If an option is malformed, or the message has no columns.
    """

    descriptor: bytes | str | os.PathLike[str] | Schemas | type[Any] = field(repr=False)
    message: str | None = None
    registry: SchemaRegistry | None = field(default=None, kw_only=True)
    framing: Literal["confluent", "none"] | None = field(default=None, kw_only=True)
    times: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        if self.registry is not None and not isinstance(self.registry, SchemaRegistry):
            raise OptionError(Option("registry", self.registry), " must be a SchemaRegistry")
        if self.framing is None:
            object.__setattr__(self, "framing", "none" if self.registry is None else "confluent")
        one_of("framing", self.framing, "confluent", "none")
        if (self.framing == "confluent") != (self.registry is not None):
            raise OptionError(
                "a registry is for ", Option("framing", "confluent"), ", which needs it"
            )
        name = self.message
        if name is None and isinstance(self.descriptor, type):
            name = getattr(self.descriptor, "DESCRIPTOR", self.descriptor).full_name
        files = descriptor_set(self.descriptor)
        object.__setattr__(self, "descriptor", files)
        object.__setattr__(self, "message", find_message(files, name).full_name)
        self._messages()

    async def fetch(self, payloads: pa.BinaryArray) -> None:
        """Ask the registry for the schemas of records that it was not asked for."""
        if self.registry is not None:
            _, cursors = _cursors(payloads)
            await self.registry.load([number for number, _, _ in _frames(cursors)])

    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Return a struct for each payload, null for null, and why rows cannot be read."""
        failures, cursors = _cursors(payloads)
        if self.registry is not None:
            cursors = self._without_frames(cursors)
        values = self._messages().read(cursors)
        if len(cursors) == len(payloads):
            return values, failures
        places = np.full(len(payloads), -1)
        places[cursors.rows] = np.arange(len(cursors))
        return values.take(pa.array(places, mask=places < 0)), failures

    def _messages(self) -> Messages:
        return _plan(self.descriptor, self.message, self.times)

    def _without_frames(self, cursors: Cursors) -> Cursors:
        """Return the records of our message, behind their frames."""
        assert self.registry is not None, "there are no frames without a registry"
        kept = []
        for number, path, chosen in _frames(cursors):
            found = self.registry.answer(number, _KIND)
            problem = found.problem
            if not problem:
                names = _names(found.schemas[-1], path)
                if not names:
                    problem = f"the schema {number} has no message at {list(path)}"
                elif self.message not in names:
                    problem = f"it is a {min(names)}, and no {self.message}"
            if problem:
                is_bad = np.zeros(len(cursors), bool)
                is_bad[chosen] = True
                cursors.fail(is_bad, problem)
            else:
                kept.append(chosen)
        return cursors.take(np.sort(np.concatenate([np.empty(0, np.int64), *kept])))


@lru_cache(maxsize=64)
def _plan(files: bytes, message: str, times: bool) -> Messages:  # noqa: FBT001 - a key of the cache
    return Planner(times=times).plan(find_message(files, message))


@lru_cache(maxsize=256)
def _names(schema: str, path: tuple[int, ...]) -> set[str]:
    return names_at(schema, path)


def _cursors(payloads: pa.BinaryArray) -> tuple[dict[int, str], Cursors]:
    """Return cursors for the records that are there, and a place for why some are bad."""
    _, offsets, data = payloads.buffers()
    places = np.frombuffer(offsets, np.int32)[payloads.offset :][: len(payloads) + 1]
    places = places if len(payloads) else np.zeros(1, np.int32)
    first, last = int(places[0]), int(places[-1])
    whole = np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(1, np.uint8)
    rows = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
    bounds = (places - first).astype(np.int64)
    failures: dict[int, str] = {}
    return failures, Cursors(whole, bounds[:-1][rows], bounds[1:][rows], rows, failures)


def _frames(cursors: Cursors) -> list[tuple[int, tuple[int, ...], Ints]]:
    """Go behind the frames; return each schema and message with the records that have them."""
    heads = cursors.data.take(cursors.positions[:, None] + np.arange(_HEAD), mode="clip")
    is_whole = cursors.ends - cursors.positions > _HEAD
    cursors.positions = cursors.positions + _HEAD
    cursors.fail(~is_whole | (heads[:, 0] != 0), _NO_FRAME)
    ids = np.ascontiguousarray(heads[:, 1:]).view(">u4").reshape(-1).astype(np.int64)
    there = np.flatnonzero(cursors.positions < cursors.ends)
    counts = np.zeros(len(cursors), np.int64)
    counts[there] = _numbers(cursors, there)
    bad = (counts < 0) | (counts > _MOST_INDEXES)
    cursors.fail(bad, _NO_FRAME)
    counts[bad] = 0
    keys = np.full((len(cursors), 1 + max(1, counts.max(initial=0))), -1)
    keys[:, 0] = ids
    keys[counts == 0, 1] = 0  # the first message is written so
    for level in range(counts.max(initial=0)):
        deep = np.flatnonzero(counts > level)
        keys[deep, 1 + level] = _numbers(cursors, deep)
    fine = there[~np.isin(cursors.rows[there], list(cursors.failures))]
    keys, groups = np.unique(keys[fine], axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    return [
        (key[0], tuple(index for index in key[1:] if index >= 0), fine[groups == group])
        for group, key in enumerate(keys.tolist())
    ]


def _numbers(cursors: Cursors, chosen: Ints) -> Ints:
    """Read numbers of some records, and go behind them."""
    some = cursors.take(chosen)
    values = some.varints("the index of the message")
    cursors.positions[chosen] = some.positions
    return values
