"""Make the entries of PutRecords from columns or rows, and check them before anything is put."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.option_checks import as_rows
from fanout.errors import MalformedEventError, UnwritableRecordError
from fanout.kinesis.aws.api import hash_key_of, parse_hash_key
from fanout.kinesis.deduplication import ID_BYTES, prefixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KeyOfEntry: TypeAlias = "tuple[str | None, int | None]"
"""The partition key, and the explicit hash key if there is one: what keeps its order."""

_COLUMNS: Final = {
    "partitionKey": pa.string(),
    "data": pa.binary(),
    "explicitHashKey": pa.string(),
    "deduplicationId": pa.binary(),
}
# The service's own limit.
_MAX_KEY_CHARACTERS: Final = 256


@final
@dataclass(slots=True, eq=False)
class QueuedRecord:
    """A record that is to be put."""

    key: KeyOfEntry  # its partition key, and its explicit hash key
    data: bytes
    nbytes: int  # of data and keys, as the service counts them
    # when to give up, by the loop's clock; None before the first attempt
    deadline: float | None = None


def hash_key_of_entry(key: KeyOfEntry) -> int:
    """Return the hash key of entries with a key."""
    partition_key, explicit = key
    return hash_key_of(partition_key or "") if explicit is None else explicit


@final
@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The entries of records, in their order."""

    _columns: Sequence[Sequence[Any]]  # partition keys, explicit hash keys, data, and sizes
    largest: int  # bytes of one
    keyless: bool  # one has no partition key

    def __iter__(self) -> Iterator[QueuedRecord]:
        for key, hash_key, value, nbytes in zip(*self._columns, strict=True):
            yield QueuedRecord((key, hash_key), value, nbytes)


def make_entries(records: pa.RecordBatch | Sequence[Mapping[str, Any]]) -> Entries:
    """Return the entries of records.

    The columns, or the names in rows, are `data`, and optionally `partitionKey`, `explicitHashKey`
    and `deduplicationId`. A value that Kinesis cannot hold is an UnwritableRecordError.
    """
    batch = records if isinstance(records, pa.RecordBatch) else _from_rows(records)
    columns = _checked(batch)
    keys, data = columns["partitionKey"], columns["data"]
    ids = columns.get("deduplicationId")
    if ids is not None:
        data = prefixed(ids, data)
    of_keys = pc.fill_null(pc.binary_length(keys.cast(pa.binary())), 0)
    sizes = pc.add(of_keys, pc.binary_length(data))
    explicit = columns.get("explicitHashKey", pa.nulls(len(keys), pa.string()))
    hash_keys = [_hash_key(digits) for digits in explicit.to_pylist()]
    return Entries(
        (keys.to_pylist(), hash_keys, data.to_pylist(), sizes.to_pylist()),
        largest=pc.max(sizes).as_py() or 0,
        keyless=keys.null_count > 0,
    )


def _from_rows(records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    rows = as_rows(records)
    names = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(_COLUMNS)
    _check_names([*names])
    arrays = []
    for name in names:
        try:
            arrays.append(pa.array([row.get(name) for row in rows], _COLUMNS[name]))
        except (pa.ArrowException, TypeError, ValueError):
            # The original error may quote a value, so it is not chained.
            raise UnwritableRecordError(
                f"{name!r} of a row cannot be made {_COLUMNS[name]}"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, names=[*names])


def _checked(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns in the types that are put."""
    names = batch.schema.names
    _check_names(names)
    columns = {"partitionKey": pa.nulls(len(batch), pa.string())}
    columns |= {name: _cast(name, batch[name]) for name in names}
    for name in ("data", "deduplicationId"):
        if name in columns and columns[name].null_count:
            raise UnwritableRecordError(f"a record has no {name}: give each one")
    lengths = pc.utf8_length(columns["partitionKey"])
    shortest, longest = pc.min_max(lengths).as_py().values()
    if shortest is not None and not 1 <= shortest <= longest <= _MAX_KEY_CHARACTERS:
        raise UnwritableRecordError(
            f"the partitionKey of a record must have 1 to {_MAX_KEY_CHARACTERS} characters"
        )
    ids = columns.get("deduplicationId")
    if ids is not None and pc.any(pc.not_equal(pc.binary_length(ids), ID_BYTES)).as_py():
        raise UnwritableRecordError(
            f"the deduplicationId of a record must have {ID_BYTES} bytes, such as uuid4().bytes"
        )
    return columns


def _check_names(names: Sequence[str]) -> None:
    if "data" not in names:
        raise UnwritableRecordError("the records have no column 'data'")
    for name in names:
        if name not in _COLUMNS or names.count(name) > 1:
            raise UnwritableRecordError(
                f"the records have a column {name!r} that Kinesis cannot hold: leave it out, or "
                f"name it {', '.join(_COLUMNS)}, each at most once"
            )


def _cast(name: str, column: pa.Array) -> pa.Array:
    kind = _COLUMNS[name]
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # The original error may quote a value, so it is not chained.
        raise UnwritableRecordError(
            f"the column {name!r} has the type {column.type}, which cannot be made {kind}"
        ) from None


def _hash_key(digits: str | None) -> int | None:
    if digits is None:
        return None
    try:
        return parse_hash_key(digits.encode())
    except MalformedEventError as error:
        raise UnwritableRecordError(f"a record {error}") from None
