"""Rare coincidences while a process reads a stream, each of which a campaign has to have met.

A campaign that never meets one has proved nothing about it, however many seeds it runs. The idea is
that of "sometimes assertions" (Antithesis documentation, "Sometimes Assertions").
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("KinesisSometimes", "NeverMetError", "check_met", "missing")


@final
class KinesisSometimes(StrEnum):
    """Name a coincidence, and say in a sentence what has happened when it is met."""

    # The pill.
    PILL_BEHIND_EVENT = "a pill arrives while the slot still holds an event"
    PILL_WHILE_COLLECTING = "a pill arrives while a drain is collecting"
    FAILED_BESIDE_FULL_SLOT = "a shard fails for good while the slot of another holds an event"
    HANDED_OUT_AFTER_FAILURE = "what was buffered is handed out after the stream has failed"
    # Closing.
    CLOSED_BACKING_OFF = "a stream is closed while a shard backs off"
    CLOSED_SUBSCRIBING = "a stream is closed while a subscribe call is pending"
    CLOSED_FULL = "a stream is closed while a slot holds an event"
    CLOSED_WAITING_FOR_MEMORY = "a stream is closed while a shard waits for memory"
    CLOSED_LOOKING = "a stream is closed while it asks what became of a shard"
    # Subscriptions.
    TAKEN_OVER_FULL = "a subscription is taken over while its slot holds an event"
    TAKEN_OVER_BACKING_OFF = "a stranger subscribes to a shard while our reader of it backs off"
    TAKEN_OVER_BY_SUCCESSOR = "a process takes over a shard that the one before it still reads"
    CUT_TOGETHER = "the live subscriptions of several shards end at once"
    OVER_BEFORE_FIRST_EVENT = "a subscription that was granted is over before its first event"
    OVER_UNREAD = "a subscription's time is over a minute before its reader comes to see it"
    SUBSCRIBED_FULL = "a shard is subscribed to again while its slot still holds an event"
    NEW_PROCESS_TOO_EARLY = "a process subscribes within five seconds of the one before it"
    ITERATOR_EXPIRED = "an iterator has expired, and polling goes on with a new one"
    HEARTBEAT_READ_LATE = "a heartbeat is read a minute after it was written"
    IDLE_BEHIND_BATCH = "idle progress waits until the slot gives up its batch"
    # The end of a shard.
    END_FIRST = "the first event of a shard that a process receives is its end"
    END_AFTER_RESUBSCRIPTION = "the first event after a resubscription is the end of the shard"
    END_WAITED = "the end of a shard waits half a minute for a slow job"
    END_CONFIRMED = "half an end is believed, as the listing confirms it"
    BOTH_PARENTS_WAIT = "the ends of both parents of a merge wait in their slots"
    EMPTY_SHARD_ENDED = "a shard ends that never had a record"
    CHILD_KNOWN_FROM_END = "a child is known from its parent's end before a listing names it"
    CHILD_LISTED_EARLY = "a listing names a child before its parent is read to the end"
    OLD_LISTING = "a listing lacks a shard that the one before it has named"
    LIVED_BETWEEN_LISTINGS = "a shard is begun and ended between two listings"
    HURRIED_LISTING_FAILED = "the listing fails that the end of a shard has asked for"
    # The consumer and the credentials.
    CONSUMER_GONE_BACKING_OFF = "the consumer is removed while every shard backs off"
    REGISTERED_FOR_SEVERAL = "the consumer is registered again for several shards together"
    RENEWED_FOR_SEVERAL = "the credentials are renewed once for several calls"
    LOOK_FAILED = "it cannot be found out what became of a shard"
    # The watchdog, the memory and the waits.
    STRUCK_BLOCKED = "the silence is over while the loop is blocked, and is measured anew"
    ARRIVED_IN_LAST_TURN = "bytes arrive in the very turn in which the silence is over"
    WAITED_FOR_MEMORY = "a shard waits for memory longer than the service may be silent"
    LONGEST_BACKOFF = "the waits between attempts have grown to their cap"
    BACKOFF_RESET_BY_IDLE = "waits that have grown are reset by idle progress alone"
    PERSON_NOT_NEEDED = "a shard that waits for a person goes on by itself"
    LAST_ATTEMPT_SUCCEEDED = "the last attempt succeeds before an error would have been fatal"
    # Losses.
    GAP_WITH_RECORDS = "records are lost, and the gap comes with the records behind it"
    GAP_ON_IDLE = "records are lost, and what comes behind the gap is idle progress"
    GAP_BEFORE_END = "records are lost, and what comes behind the gap is the end of the shard"
    # What the job does.
    CANCELLED_DRAIN_GAVE_BACK = "a cancelled drain gives events back, and the next call has them"
    CUT_INSIDE_AGGREGATE = "a drain is cut inside an aggregated record"
    RESUMED_INSIDE_AGGREGATE = "a process resumes inside an aggregated record"
    RESUBSCRIBED_INSIDE_AGGREGATE = "a shard is subscribed to twice at a place inside a record"
    CHECKPOINT_FAILED_ONCE = "a checkpoint is stored by the write after one that failed"
    # Crashes and restarts.
    DIED_OPENING = "a process dies while it opens its stream"
    DIED_UNACKNOWLEDGED = "a process dies between a delivery and its acknowledgement"
    DIED_UNSTORED = "a process dies after an acknowledgement that it has not stored"
    DIED_STORING = "a process dies while it stores positions"
    RESTARTED_FROM_TORN = "a process finds torn positions, and resumes from those before them"
    RESTART_REPLAYED = "a process resumes before records that the one before it has had"
    RESTARTED_AMONG_CHILDREN = "a process resumes in shards whose parents it never reads"
    OPENED_AFTER_FAILURE = "a stream that could not be opened is opened by the next process"


class NeverMetError(AssertionError):
    """A campaign has missed a coincidence; the text names each."""


def missing(met: Mapping[str, int]) -> tuple[KinesisSometimes, ...]:
    """Return the coincidences that were never met.

    Args:
        met: How often each was, as in the sum of `Outcome.moments` over a campaign.
    """
    return tuple(moment for moment in KinesisSometimes if not met.get(moment))


def check_met(met: Mapping[str, int]) -> None:
    """Check that every coincidence was met.

    Raises:
        NeverMetError: If one was not.
    """
    if never := missing(met):
        lines = [f"  {moment.name}: {moment}" for moment in never]
        raise NeverMetError("\n".join(["these coincidences were never met:", *lines]))
