"""Store the tokens of a sink's transactions in a checkpoint, and which of them were committed.

A token is durable before its transaction is committed, so that the next run can finish it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, final

import msgspec

from fanout.core.stored_json import StoredFormat
from fanout.errors import CheckpointError
from fanout.kafka.transactions.commit_token import MAX_TOKEN_BYTES, CommitToken
from fanout.landing.claims import create_owned
from fanout.landing.log.entries import batch_ids

if TYPE_CHECKING:
    from fanout.landing.claims import Ownership
    from fanout.landing.storage.storage import Storage

SINKS: Final = "sinks"
_COMMITTED: Final = ".committed"
_GENERATION: Final = "generation.json"
_MAX_GENERATION_BYTES: Final = 1000


class _Committed(msgspec.Struct, frozen=True):
    version: Literal[1]
    batch: int


class _Generation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    first: int


_GENERATION_FORMAT: Final = StoredFormat(
    wire=_Generation,
    max_size=_MAX_GENERATION_BYTES,
    error=CheckpointError,
    hint="restore this file alone from a backup",
)


class StoredTokens:
    """Read the files of one sink below a checkpoint; ownership is not needed. Every call blocks."""

    def __init__(self, storage: Storage, sink_name: str) -> None:
        self._storage = storage
        self._directory = f"{SINKS}/{sink_name}"

    def is_committed(self, batch_id: int) -> bool:
        """Return whether a batch is recorded as committed, even long ago."""
        return self._storage.size(self._name(batch_id, _COMMITTED)) is not None

    def token(self, batch_id: int) -> CommitToken | None:
        """Return the token of a batch; None if none was stored, or it was deleted.

        Raises:
            CheckpointError: If it is damaged, another batch's, or of a newer version.
        """
        name = self._name(batch_id)
        data = self._storage.read(name, limit=MAX_TOKEN_BYTES)
        if data is None:
            return None
        try:
            token = CommitToken.from_json(data)
        except CheckpointError as error:
            raise CheckpointError(f"{name} in {self._storage.location}: {error}") from error
        if token.batch_id != batch_id:
            raise CheckpointError(
                f"{name} in {self._storage.location} is of batch {token.batch_id}: it is "
                f"damaged; restore this file alone from a backup"
            )
        return token

    def unfinished(self) -> list[CommitToken]:
        """Return the tokens without a recorded outcome, oldest first."""
        names = {file.name for file in self._storage.list(self._directory)}
        ids = [id_ for id_ in batch_ids(names) if f"{id_:012}{_COMMITTED}.json" not in names]
        return [token for token in map(self.token, ids) if token is not None]

    def newest(self) -> CommitToken | None:
        """Return the newest token, with any outcome; None where there is none."""
        ids = batch_ids(file.name for file in self._storage.list(self._directory))
        return self.token(ids[-1]) if ids else None

    def _name(self, batch_id: int, suffix: str = "") -> str:
        return f"{self._directory}/{batch_id:012}{suffix}.json"


@final
class SinkState(StoredTokens):
    """Read and write the files of one sink, as the owner of the checkpoint. Every call blocks."""

    def __init__(self, storage: Storage, ownership: Ownership, sink_name: str) -> None:
        super().__init__(storage, sink_name)
        self._ownership = ownership

    def record(self, token: CommitToken) -> None:
        """Store a token durably; its transaction may be committed when this returns.

        Raises:
            CheckpointError: If a newer run owns the checkpoint, or it cannot be written.
        """
        create_owned(
            self._storage, self._ownership, self._name(token.batch_id), token.to_json().encode()
        )

    def record_committed(self, batch_id: int) -> None:
        """Store that a batch was committed, and delete the files of the batches before it."""
        data = msgspec.json.encode(_Committed(1, batch_id))
        try:
            self._storage.create(self._name(batch_id, _COMMITTED), data)
        except FileExistsError:
            return  # an earlier run stored it, and was stopped
        for file in self._storage.list(self._directory):
            number = file.name.partition(".")[0]
            if number.isdecimal() and int(number) < batch_id:
                self._storage.delete(f"{self._directory}/{file.name}")

    def first_generation(self, now: int) -> int:
        """Return the time of the first run, in milliseconds since the Unix epoch.

        It is `now` where no time is stored yet.
        """
        name = f"{self._directory}/{_GENERATION}"
        data = self._storage.read(name, limit=_MAX_GENERATION_BYTES)
        if data is None:
            self._ownership.check()
            self._storage.create(name, msgspec.json.encode(_Generation(1, now)))
            return now
        return _GENERATION_FORMAT.read(data, f"{name} in {self._storage.location}").first

    def forget(self, batch_id: int) -> None:
        """Delete the token of a batch whose transaction is known not to have been committed.

        Raises:
            CheckpointError: If a newer run owns the checkpoint, or it cannot be written.
        """
        self._ownership.check()
        self._storage.delete(self._name(batch_id))
