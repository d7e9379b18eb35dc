"""Decode batches by a user's function, and find the records that it fails for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.core.bad_records import BadRecords
from fanout.core.events import UNCOUNTED, Gap
from fanout.core.user_functions import is_interrupt
from fanout.errors import DecodeFailedError, RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.core.bad_records import OnBadRecord
    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.core.user_decode import UserDecode


@final
class BatchDecoder:
    """Decode batches, and do with the records that cannot be decoded as the user says.

    A batch that the function fails for is halved until the records are found. Where the function
    keeps to its contract, a record is decoded alike in each of them. Bad records raise with
    `"fail"` and are left out as gaps with `"gap"`; a function gets them before the batch is
    delivered without them. `cursor` returns the position after a row of a batch that is not
    decoded.
    """

    def __init__(
        self,
        function: UserDecode,
        on_bad: OnBadRecord,
        cursor: Callable[[Batch, int], Cursor],
    ) -> None:
        self._function = function
        self._on_bad = on_bad
        self._cursor = cursor

    async def __call__(self, batch: Batch) -> Batch:
        """Return a batch with decoded records.

        Raises:
            DecodeFailedError: If the function fails and bad records are to fail, its result cannot
                be delivered, or the function for bad records fails.
            RetryLaterError: If one of the two functions raises it.

        Cancellation: the batch is not delivered; its bad records come again with it.
        """
        if not batch.num_records:
            return replace(batch, records=self._function.no_records)
        records, errors = await self._decode(batch)
        gaps = batch.gaps
        if errors and self._on_bad == "gap":
            gaps += self._gaps(batch, errors)
        elif errors:
            bad = batch.records.take(pa.array(errors, pa.int64()))
            await self._hand_over(BadRecords(batch.split, bad, tuple(errors.values())))
        return replace(batch, records=records, gaps=gaps, nbytes=UNCOUNTED, bad_records=len(errors))

    async def _decode(self, batch: Batch) -> tuple[pa.RecordBatch, dict[int, BaseException]]:
        """Return what can be decoded, and for each other row what the function raised."""
        decoded: list[pa.RecordBatch] = []
        errors: dict[int, BaseException] = {}
        pieces = [(0, batch.num_records)]
        while pieces:
            begin, rows = pieces.pop()
            try:
                decoded.append(self._function(batch.records.slice(begin, rows), batch.split))
            except DecodeFailedError as error:
                # Without a cause the function has returned what no record may become. SystemExit
                # and its like are about the process, and not about a record.
                if self._on_bad == "fail" or not isinstance(error.__cause__, Exception):
                    raise
                if rows == 1:
                    errors[begin] = error.__cause__
                else:
                    half = rows // 2
                    pieces += [(begin + half, rows - half), (begin, half)]
                await asyncio.sleep(0)  # many bad records keep no other split waiting
        return self._joined(decoded), errors

    def _joined(self, decoded: list[pa.RecordBatch]) -> pa.RecordBatch:
        if len(decoded) == 1:
            return decoded[0]
        table = pa.Table.from_batches(decoded, self._function.schema).combine_chunks()
        return next(iter(table.to_batches()), self._function.no_records)

    def _gaps(self, batch: Batch, errors: Mapping[int, BaseException]) -> tuple[Gap, ...]:
        """Return a gap for each run of bad rows."""
        gaps = []
        for _, run in groupby(enumerate(errors), lambda each: each[1] - each[0]):
            rows = [row for _, row in run]
            before = self._cursor(batch, rows[0] - 1) if rows[0] else batch.range.after
            kinds = ", ".join(sorted({type(errors[row]).__name__ for row in rows}))
            reason = f"decode failed for {len(rows)} of them ({kinds})"
            gaps.append(Gap(before, self._cursor(batch, rows[-1]), reason))
        return tuple(gaps)

    async def _hand_over(self, bad: BadRecords) -> None:
        assert callable(self._on_bad), "only a callback is left"
        try:
            await self._on_bad(bad)
        except (RetryLaterError, asyncio.CancelledError):
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise DecodeFailedError(
                f"on_bad_record failed for {len(bad.errors)} records of {bad.split}"
            ) from error
