"""Sessions of events by transformWithState: events of one key without a pause between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

PAUSE: Final = 10
SCHEMA: Final = "key bigint, first bigint, last bigint, events bigint"


class Sessions(StatefulProcessor):
    """Keep the seconds of the events of each key; write a session when the watermark is past it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Take the handle of the state."""
        self._handle = handle
        self._seconds = handle.getListState("seconds", "second bigint")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Remember events."""
        del key, timerValues
        for frame in rows:
            seconds = frame["second"].tolist()
            self._seconds.appendList([(one,) for one in seconds])
            for second in seconds:
                self._handle.registerTimer(1000 * (second + PAUSE))
        yield pd.DataFrame()

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Write the sessions that nothing can continue."""
        del expiredTimerInfo
        now = timerValues.getCurrentWatermarkInMs() // 1000
        remembered = [row[0] for row in self._seconds.get()]
        ended = [one for one in sessions(remembered) if one[-1] + PAUSE <= now]
        seconds = {second for one in ended for second in one}
        self._seconds.clear()
        if rest := [(one,) for one in remembered if one not in seconds]:
            self._seconds.put(rest)
        if rows := [(key[0], one[0], one[-1], len(one)) for one in ended]:
            yield pd.DataFrame(rows, columns=["key", "first", "last", "events"])

    def close(self) -> None:
        """Hold nothing."""


def sessions(seconds: Iterable[int]) -> list[list[int]]:
    """Divide events of one key by the pauses between them."""
    found: list[list[int]] = []
    for second in sorted(seconds):
        if found and second - found[-1][-1] < PAUSE:
            found[-1].append(second)
        else:
            found.append([second])
    return found
