"""Records that a user's `decode` fails for, and the option that says how to handle them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from fanout.core.events import Split

    OnBadRecord: TypeAlias = Literal["fail", "gap"] | Callable[["BadRecords"], Awaitable[None]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class BadRecords:
    """Records that `decode` fails for, of one batch, in order.

    Args:
        split: Their shard or partition.
        records: The records as `decode` got them, with the columns that locate them.
        errors: What `decode` raised for each.
    """

    split: Split
    records: pa.RecordBatch
    errors: tuple[BaseException, ...]

    def __repr__(self) -> str:
        return f"<BadRecords {self.split} {len(self.errors)} records>"


def check_on_bad_record(value: object, decode: object) -> None:
    """Check the option `on_bad_record`; `"gap"` needs the option `decode`."""
    if isinstance(value, str) and value in {"fail", "gap"}:
        if value == "gap" and decode is None:
            raise OptionError("on_bad_record is about decode: pass decode, or leave it out")
        return
    call = type(value).__call__ if callable(value) else None
    if not inspect.iscoroutinefunction(value) and not inspect.iscoroutinefunction(call):
        raise OptionError(
            f"on_bad_record={value!r} must be 'fail', 'gap' or an async function of BadRecords"
        )
    if decode is None:
        raise OptionError("on_bad_record is about decode: pass decode, or leave it out")
