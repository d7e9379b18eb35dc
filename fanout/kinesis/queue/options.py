"""The options of a source of a queue."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from fanout.core.backoff import Backoff
from fanout.core.option_checks import check_strings, one_of, whole
from fanout.core.sentence import Option
from fanout.core.source_options import SourceOptions
from fanout.core.user_decode import UserDecode, check_decode
from fanout.errors import OptionError
from fanout.kinesis.aws.api import NAME, STREAM_ARN
from fanout.kinesis.aws.endpoint import check_endpoint
from fanout.kinesis.aws.role import AssumedRole
from fanout.kinesis.intervals import KINESIS_INTERVALS
from fanout.kinesis.queue.records import NO_RECORDS, PLACES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from fanout.core.backoff import Pacing

QUEUE_ARN: Final = re.compile(
    r"arn:aws[a-z0-9-]*:kinesis:(?P<region>[a-z0-9-]+):[0-9]{12}:queue/\S+"
)
# The stored list of unconfirmed records has an id of 64 characters for each.
_MAX_POLL_RECORDS: Final = 2_500
_MAX_MEMBERS: Final = 4
_MAX_RECEIVERS: Final = 1_000
# Seconds: less would leave no time for a call, and more is refused by the service.
_LOCKS: Final = (4, 43_200)
_SUBSCRIBE_TIMEOUT: Final = 60.0
_BACKOFF: Final = Backoff(base=1.0, cap=30.0)
_STRINGS: Final = ("region", "endpoint_url", "role_arn", "external_id", "role_session_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(SourceOptions):
    """The options of a source of a queue. All times are in seconds.

    Args:
        stream: The stream's name or ARN.
        queue: The name of a queue on it, or the queue's ARN.
        receivers: How many calls ask for records at a time; each brings up to ten.
        max_poll_records: About how many records one of the members holds until they are
            acknowledged; the receivers are shared out to up to four members.
        visibility_timeout: For how long nobody else gets a record that was received. It is extended
            until the record is acknowledged or given back; after a crash it runs out.
        decode: Turns records into other columns, one record batch in a call. It may leave rows out,
            which are then acknowledged, and keeps the columns `stream`, `queue` and `recordId`. It
            runs on the event loop. With `"dead_letter"` it is called again with parts of a batch
            that has a bad record.
        on_bad_record: What to do with a record that `decode` fails for: `"fail"` ends the stream;
            `"dead_letter"` leaves it to the queue, which delivers it until it is a dead letter.
        backoff: How the waits between attempts grow; see `Backoff`.
        max_retries: Failures in a row without progress after which a member fails; None for never.
        discovery_interval: The time between two checks that the queue still exists; None for no
            checks.
        max_bytes_in_flight: The bytes of all members together that may wait for the reader.
        region: The AWS region; None takes it from an ARN, else from the session.
        endpoint_url: An endpoint instead of the region's.
        session: An `aioboto3.Session`; None makes one from the environment.
        role_arn: A role to assume, refreshed before it expires.
        external_id: The external id that the trust policy of the role asks for.
        role_session_name: The name of this reader in the logs of the role's account; None for
            `"fanout"`.
        insecure: Allow plain http to a host that is not this machine.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    stream: str
    queue: str
    receivers: int = 16
    max_poll_records: int = 1_000
    visibility_timeout: int = 60
    decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    on_bad_record: Literal["fail", "dead_letter"] = "fail"
    backoff: Backoff = _BACKOFF
    discovery_interval: float | None = 60.0
    region: str | None = None
    endpoint_url: str | None = None
    session: Any = field(default=None, repr=False, compare=False)
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    role_session_name: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        check_strings(self, *_STRINGS)
        self._check_names()
        self._check_numbers()
        check_decode(self.decode)
        one_of("on_bad_record", self.on_bad_record, "fail", "dead_letter")
        _ = self.user_decode, self.role  # checks them
        self.check_reading()
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url, insecure=self.insecure)

    @property
    def user_decode(self) -> UserDecode | None:
        """The user's `decode`, after a first call."""
        return None if self.decode is None else UserDecode(self.decode, NO_RECORDS, PLACES)

    @property
    def max_deliveries(self) -> None:
        """None: the queue itself makes a dead letter of what was delivered too often."""

    @property
    def role(self) -> AssumedRole | None:
        """The role to assume."""
        return AssumedRole.parse(self.role_arn, self.external_id, self.role_session_name)

    @property
    def resolved_region(self) -> str | None:
        """The region that the options name, directly or inside an ARN."""
        for pattern, given in ((QUEUE_ARN, self.queue), (STREAM_ARN, self.stream)):
            if match := pattern.match(given):
                return match["region"]
        return self.region

    @property
    def members(self) -> int:
        """How many members share the receivers: one gets records while another's are processed."""
        return min(self.receivers, _MAX_MEMBERS)

    @property
    def pacing(self) -> Pacing:
        """The limits on calls, and the timeouts."""
        intervals = KINESIS_INTERVALS.current
        return self.make_pacing(
            floor=intervals.subscribe,
            slow=intervals.manual,
            subscribe_timeout=_SUBSCRIBE_TIMEOUT,
            # A member yields nothing while there are no records.
            silence_timeout=math.inf,
        )

    def _check_names(self) -> None:
        for name, arn in (("stream", STREAM_ARN), ("queue", QUEUE_ARN)):
            given = getattr(self, name)
            if not isinstance(given, str) or not (NAME.fullmatch(given) or arn.fullmatch(given)):
                raise OptionError(
                    Option(name, given),
                    f" is neither a {name}'s name (1 to 128 of a-z A-Z 0-9 _ . -) nor its ARN",
                )

    def _check_numbers(self) -> None:
        for name, least, most in (
            ("receivers", 1, _MAX_RECEIVERS),
            ("max_poll_records", 1, _MAX_POLL_RECORDS),
            ("visibility_timeout", *_LOCKS),
        ):
            if not least <= whole(name, getattr(self, name)) <= most:
                raise OptionError(
                    Option(name, getattr(self, name)), f" must be from {least} to {most}"
                )
