"""Continue stored positions with several streams: streams may come and go between two runs.

Ids of shards repeat, so a split of several streams is `stream/shard`.

The identity of such a source names each stream with the time of its creation. A stream that is read
no longer stays in it, so that the positions that are kept for it can be read on later.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import End, Split
from fanout.errors import PositionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fanout.core.events import Batch
    from fanout.kinesis.aws.api import StreamDescription

_KIND: Final = "kinesis:"
_SEVERAL: Final = re.compile(r"kinesis:\[(.*)\]")
_NAME: Final = re.compile(r".*:stream/(?P<name>[a-zA-Z0-9_.-]+) of ")


def stream_of(split_id: str) -> str:
    """Return the stream of a split, such as `orders/shardId-000000000000`."""
    return split_id.partition("/")[0]


@final
class StreamSplits:
    """Translate between the shards of one stream and the splits of a source of several."""

    def __init__(self, stream: str) -> None:
        self._prefix = f"{stream}/"

    def split_id(self, shard_id: str) -> str:
        """Return the id of the split of a shard."""
        return self._prefix + shard_id

    def split(self, shard: Split) -> Split:
        """Return the split of a shard."""
        return Split(self.split_id(shard.id), tuple(map(self.split_id, shard.parents)))

    def splits(self, shards: Iterable[Split]) -> tuple[Split, ...]:
        """Return the splits of shards."""
        return tuple(map(self.split, shards))

    def shard(self, split: Split) -> Split:
        """Return the shard of a split."""
        parents = tuple(parent.removeprefix(self._prefix) for parent in split.parents)
        return Split(split.id.removeprefix(self._prefix), parents)

    def event(self, event: Batch | End, split: Split) -> Batch | End:
        """Return an event of a shard as one of its split."""
        if isinstance(event, End):
            return replace(event, split=split, children=self.splits(event.children))
        return replace(event, split=split)


def identity(stream: StreamDescription) -> str:
    """Return the name under which the positions of a stream are stored."""
    # A stream that replaces another has its name, ARN and shard ids, but none of its records.
    created = stream.created.astimezone(UTC).isoformat(timespec="milliseconds")
    return f"{_KIND}{stream.arn} of {created}"


def identity_of_several(streams: Iterable[StreamDescription]) -> str:
    """Return the name under which the positions of several streams are stored together."""
    return _joined({stream.name: _identity(stream) for stream in streams})


def adopt_alone(checkpoint: Checkpoint, stream: StreamDescription) -> Checkpoint | None:
    """Return stored positions as positions of one stream; None if they are no such."""
    if checkpoint.source == identity(stream):
        return checkpoint
    _check_not_replaced(checkpoint.source.removeprefix(_KIND), _identity(stream))
    return None


def adopt(checkpoint: Checkpoint, streams: Iterable[StreamDescription]) -> Checkpoint | None:
    """Return stored positions as positions of several streams; None if they are no such.

    Positions of one of the streams, stored when it was read alone, become those of its splits.
    """
    stored = stored_streams(checkpoint.source)
    given = {stream.name: _identity(stream) for stream in streams}
    if not stored.keys() & given.keys():
        return None
    for name in stored.keys() & given.keys():
        if stored[name] != given[name]:
            _check_not_replaced(stored[name], given[name])
            raise PositionError(
                f"the stored positions of the stream {name!r} belong to {stored[name]}, not to "
                f"{given[name]}; resume them with the stream that they were stored for, or start "
                f"anew without them"
            )
    splits = checkpoint.splits
    if not _SEVERAL.fullmatch(checkpoint.source):
        (alone,) = stored
        splits = _within(splits, StreamSplits(alone))
    return Checkpoint(_joined({**stored, **given}), splits)


def of_one_stream(checkpoint: Checkpoint, stream: StreamDescription) -> Checkpoint:
    """Return what a checkpoint has of one stream; the checkpoint itself where it has no other."""
    stored = stored_streams(checkpoint.source)
    if not _SEVERAL.fullmatch(checkpoint.source) or stream.name not in stored:
        return checkpoint
    names = StreamSplits(stream.name)
    shards = [
        SplitPosition(names.shard(state.split), state.position, state.ended, state.newest)
        for id_, state in checkpoint.splits.items()
        if stream_of(id_) == stream.name
    ]
    splits = MappingProxyType({state.split.id: state for state in shards})
    return Checkpoint(_KIND + stored[stream.name], splits)


def stored_streams(source: str) -> Mapping[str, str]:
    """Return the streams of a stored identity: by name, the ARN and time of creation."""
    # The identity of another service has none.
    several = _SEVERAL.fullmatch(source)
    streams = [source.removeprefix(_KIND)] if several is None else several[1].split(", ")
    named = ((_NAME.match(stream), stream) for stream in streams)
    return {match["name"]: stream for match, stream in named if match is not None}


def _check_not_replaced(stored: str, given: str) -> None:
    """Check that two identities are not of two streams that had one name one after the other."""
    arn, _, created = stored.partition(" of ")
    same, _, created_now = given.partition(" of ")
    if arn == same and created != created_now:
        raise PositionError(
            f"the stored positions are of a stream that was deleted: {arn} was created at "
            f"{created} when they were stored, and is another stream now, created at "
            f"{created_now}; its records are all new, so start anew without the stored positions, "
            f"with a new checkpoint or landing"
        )


def _identity(stream: StreamDescription) -> str:
    return identity(stream).removeprefix(_KIND)


def _joined(streams: Mapping[str, str]) -> str:
    return f"{_KIND}[{', '.join(streams[name] for name in sorted(streams))}]"


def _within(
    shards: Mapping[str, SplitPosition], names: StreamSplits
) -> Mapping[str, SplitPosition]:
    states = [
        SplitPosition(names.split(state.split), state.position, state.ended, state.newest)
        for state in shards.values()
    ]
    return MappingProxyType({state.split.id: state for state in states})
