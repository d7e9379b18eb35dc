"""Know what the owner of a stream has chosen: who distributes its records, how large they may be.

Both may change at any time. They are read where they matter, and not at every opening: an account
may describe its streams 20 times a second, and each task of a Spark job opens a writer.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final, final

from botocore.exceptions import ClientError

from fanout.errors import UnwritableRecordError
from fanout.kinesis.aws.error_hints import ACCESS_DENIED, code_of, explained
from fanout.kinesis.control_calls import until_answered
from fanout.kinesis.intervals import KINESIS_INTERVALS

if TYPE_CHECKING:
    from fanout.core.backoff import FullJitter
    from fanout.kinesis.aws.api import KinesisClient

log = logging.getLogger(__name__)

MAX_RECORD_BYTES: Final = 1024 * 1024
"""What a stream takes unless UpdateMaxRecordSize has raised its limit."""


@final
class StreamSettings:
    """The settings of a stream, as they were read last; before that, those of a new stream.

    `most` is the limit of the user's own, which goes without the stream's where that is not known.
    """

    def __init__(self, client: KinesisClient, stream: str, most: int | None = None) -> None:
        self.automatic = False  # the service distributes the records, whatever keys they have
        self._client = client
        self._stream = stream
        self._most = most
        self._stream_takes: int | None = None
        self._read_at = -math.inf
        self._denied = False

    @property
    def has_aged(self) -> bool:
        """Whether the service still distributes the records is to be asked again."""
        age = asyncio.get_running_loop().time() - self._read_at
        return self.automatic and age > KINESIS_INTERVALS.current.settings

    async def read(self) -> None:
        """Call DescribeStreamSummary; a role that may not make the call goes on without it."""
        self._read_at = asyncio.get_running_loop().time()
        if self._denied:
            return
        try:
            description = await self._client.describe_stream()
        except ClientError as error:
            if code_of(error) not in ACCESS_DENIED:
                raise
            self._denied = True
            log.warning(
                "%s: whether the service distributes its records is not known, as the role may "
                "not call DescribeStreamSummary; they are written in the order of their partition "
                "keys, and records without a key are refused",
                self._stream,
            )
            return
        if description.automatic != self.automatic:
            log.info(
                "%s: %s decides the shard of a record from now on",
                self._stream,
                "the service" if description.automatic else "its partition key",
            )
        self.automatic = description.automatic
        self._stream_takes = description.max_record_bytes

    async def read_now(self, jitter: FullJitter) -> None:
        """Read the settings, with further attempts for a minute."""
        with explained(f"the stream {self._stream!r} cannot be described"):
            await until_answered(self.read, jitter)

    def suffices(self, largest: int, *, keyless: bool) -> bool:
        """Return whether the stream takes such records, as far as is known; see `refusal`."""
        unknown = self._stream_takes is None and not self._denied
        return self.refusal(largest, keyless=keyless) is None and not (
            unknown and largest > MAX_RECORD_BYTES
        )

    def refusal(self, largest: int, *, keyless: bool) -> UnwritableRecordError | None:
        """Return why the stream does not take records, the largest of so many bytes with its key.

        `keyless` says that one has no partition key.
        """
        if keyless and not self.automatic:
            unknown = (
                "; whether it does is not known, as the role may not call "
                "kinesis:DescribeStreamSummary"
            )
            return UnwritableRecordError(
                f"a record has no partitionKey, and the service does not distribute the records "
                f"of {self._stream!r} (RecordDistributionStrategy AUTO){self._denied * unknown}: "
                f"give each record a key"
            )
        takes = self._stream_takes
        if takes is not None and largest > takes:
            return UnwritableRecordError(
                f"a record takes {largest} bytes with its partition key, more than the {takes} "
                f"that {self._stream!r} takes: write a smaller one, or raise the stream's limit "
                f"(UpdateMaxRecordSize, 10 MiB at most)"
            )
        most = self._most or (MAX_RECORD_BYTES if takes is None else takes)
        if largest > most:
            return UnwritableRecordError(
                f"a record takes {largest} bytes with its partition key, more than "
                f"max_record_bytes={most}: write a smaller one, or raise it and the stream's own "
                f"limit"
            )
        return None
