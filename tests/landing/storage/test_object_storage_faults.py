"""Object storage whose S3 fails, and loses answers."""

from __future__ import annotations

import traceback
import uuid
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import CheckpointError
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.storage import object_clients, object_storage
from fanout.landing.storage.opening import check_conditional_create, open_object_storage
from fanout.testing.s3_clients import BUCKET
from tests.support.s3 import s3_client, s3_options
from tests.support.s3_faults import (
    FaultyS3,
    after,
    answer_half_sent,
    answer_lost,
    answered,
    closed_without_answer,
    condition_ignored,
    cut_in_the_middle,
    faulty_s3,
    one_page_each,
    passed,
    unanswered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.landing.storage.object_storage import ObjectStorage
    from tests.support.s3_faults import Fault

    Write = Callable[[ObjectStorage, bytes], None]

NAME = "segments/1"
OURS, THEIRS = b"ours" * 1_000, b"rows" * 1_000
PASSING: dict[str, Fault] = {
    "500": answered(500, "InternalError"),
    "503": answered(503, "SlowDown"),
    "429": answered(429, "TooManyRequests"),
    "409": answered(409, "ConditionalRequestConflict"),
    "409 of others": answered(409, "OperationAborted"),
    "400": answered(400, "RequestTimeout"),
    "cut": cut_in_the_middle,
    "lost": answer_lost,
    "closed": closed_without_answer,
}


@pytest.fixture
def s3(moto: str) -> Iterator[FaultyS3]:
    with faulty_s3(moto) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def few_quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = timedelta(milliseconds=1)
    backoff = {"init_backoff": moment, "max_backoff": moment}
    monkeypatch.setattr(
        object_clients, "_RETRY", {**object_clients._RETRY, "max_retries": 2, "backoff": backoff}
    )


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Remember the waits before requests that the service asks for again, and do not wait."""
    found: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", found.append)
    return found


@pytest.fixture
def location() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def storage(s3: FaultyS3, location: str) -> Iterator[ObjectStorage]:
    with closing(open_object_storage(location, s3_options(s3.endpoint))) as storage:
        yield storage


@pytest.fixture
def theirs(moto: str, location: str) -> Iterator[Callable[[], None]]:
    """Write as another writer, who meets no faults."""
    key = f"{location.removeprefix(f's3://{BUCKET}/')}/{NAME}"
    with closing(s3_client(moto)) as client:
        yield lambda: client.put_object(Bucket=BUCKET, Key=key, Body=THEIRS)


def create(storage: ObjectStorage, data: bytes) -> None:
    storage.create(NAME, data)


def publish(storage: ObjectStorage, data: bytes) -> None:
    file = storage.scratch() / "part"
    file.write_bytes(data)
    storage.publish(file, NAME)
    assert not file.exists()


def read(storage: ObjectStorage, data: bytes) -> None:
    storage.read(NAME, limit=len(data))


WRITES = pytest.mark.parametrize("write", [create, publish])


@pytest.mark.long
@WRITES
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_a_put_that_meets_a_passing_fault_is_made_again(
    s3: FaultyS3, storage: ObjectStorage, write: Write, fault: Fault
) -> None:
    s3.next("PUT", fault)
    write(storage, OURS)
    # One whose answer was lost is found there.
    assert s3.count("PUT") == (1 if fault is answer_lost else 2)
    assert storage.read(NAME, limit=len(OURS)) == OURS


@WRITES
@pytest.mark.parametrize("fault", [answer_lost, closed_without_answer])
def test_a_put_whose_answers_are_all_lost_finds_its_own_object(
    s3: FaultyS3, storage: ObjectStorage, write: Write, fault: Fault
) -> None:
    s3.always("PUT", fault)
    write(storage, OURS)
    assert storage.read(NAME, limit=len(OURS)) == OURS


@pytest.mark.long
@WRITES
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_a_put_that_is_made_again_does_not_replace_another_writers_object(
    s3: FaultyS3,
    storage: ObjectStorage,
    theirs: Callable[[], None],
    write: Write,
    fault: Fault,
) -> None:
    s3.next("PUT", after(theirs, fault))
    with pytest.raises(FileExistsError):
        write(storage, OURS)
    assert storage.read(NAME, limit=len(OURS)) == THEIRS


@WRITES
def test_a_put_that_always_meets_a_fault_is_a_clear_error(
    s3: FaultyS3, storage: ObjectStorage, write: Write
) -> None:
    s3.always("PUT", answered(503, "SlowDown"))
    with pytest.raises(CheckpointError) as caught:
        write(storage, OURS)
    assert str(caught.value) == (
        f"cannot write {storage.location}/{NAME}: the service answered 503 (SlowDown), 3 times"
    )
    assert s3.count("PUT") == 3
    assert storage.list("segments") == ()


BUSY = [
    answered(409, "ConditionalRequestConflict"),
    answered(409, "OperationAborted"),
    answered(400, "RequestTimeout"),
]


@pytest.mark.long
@WRITES
@pytest.mark.parametrize("fault", BUSY)
def test_a_put_is_made_again_as_long_as_the_service_asks_for_that(
    s3: FaultyS3, storage: ObjectStorage, waits: list[float], write: Write, fault: Fault
) -> None:
    """After random waits that grow, so that writers who met do not meet again."""
    s3.next("PUT", *[fault] * 8)
    write(storage, OURS)
    assert storage.read(NAME, limit=len(OURS)) == OURS
    assert len(waits) == len({*waits}) == 8
    ceilings = [min(3.0, 0.1 * 2**number) for number in range(8)]
    assert all(0 < wait <= ceiling for wait, ceiling in zip(waits, ceilings, strict=True))


@WRITES
def test_a_conflict_that_stays_is_a_clear_error(
    s3: FaultyS3, storage: ObjectStorage, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "_ASKED_SECONDS", 0.05)
    s3.always("PUT", answered(409, "ConditionalRequestConflict"))
    with pytest.raises(CheckpointError) as caught:
        write(storage, OURS)
    assert str(caught.value) == (
        f"cannot write {storage.location}/{NAME}: other requests to the object were in the way "
        "each time (ConditionalRequestConflict); start again"
    )


@WRITES
def test_a_put_that_is_always_cut_is_a_clear_error(
    s3: FaultyS3, storage: ObjectStorage, write: Write
) -> None:
    s3.always("PUT", cut_in_the_middle)
    with pytest.raises(CheckpointError) as caught:
        write(storage, OURS)
    assert str(caught.value) == (
        f"cannot write {storage.location}/{NAME}: the service at {s3.endpoint[7:]} cut the "
        "connection; check the endpoint and the network"
    )
    assert storage.size(NAME) is None


@pytest.mark.long
@pytest.mark.parametrize("name", PASSING)
def test_what_is_asked_again_is_answered(s3: FaultyS3, storage: ObjectStorage, name: str) -> None:
    fault = PASSING[name]
    storage.create(NAME, OURS)
    s3.next("GET", fault, fault)
    assert storage.read(NAME, limit=len(OURS)) == OURS
    s3.next("GET", fault)
    assert [info.name for info in storage.list("segments")] == ["1"]
    if not name.startswith("40"):  # an answer to HEAD has no body, and no code
        s3.next("HEAD", fault)
    assert storage.size(NAME) == len(OURS)
    s3.next("DELETE", fault)
    storage.delete(NAME)
    assert storage.size(NAME) is None


def test_an_object_is_read_whole_when_the_connection_is_cut(
    s3: FaultyS3, storage: ObjectStorage
) -> None:
    storage.create(NAME, OURS)
    s3.next("GET", answer_half_sent)
    assert storage.read(NAME, limit=len(OURS)) == OURS


def test_a_list_of_many_pages_is_whole(s3: FaultyS3, storage: ObjectStorage) -> None:
    for number in range(5):
        storage.create(f"entries/{number}", b"")
    s3.always("GET", one_page_each)
    assert [info.name for info in storage.list("entries")] == ["0", "1", "2", "3", "4"]
    assert s3.count("GET") == 5


def test_a_page_of_a_list_may_be_empty_and_have_a_next(
    s3: FaultyS3, storage: ObjectStorage
) -> None:
    storage.create("entries/1", b"")

    def empty_page(request: Any) -> None:
        request.read()
        body = "<NextContinuationToken>t</NextContinuationToken><IsTruncated>true</IsTruncated>"
        body = f"<ListBucketResult><KeyCount>0</KeyCount>{body}</ListBucketResult>"
        request.answer(200, {"Content-Type": "application/xml"}, body.encode())

    def next_page(request: Any) -> None:
        assert "continuation-token=t" in request.path
        request.path = request.path.replace("continuation-token=t&", "")
        passed(request)

    s3.next("GET", empty_page, next_page, empty_page, next_page)
    assert [info.name for info in storage.list("entries")] == ["1"]
    assert storage.walk("entries") == ("entries/1",)


def test_a_segment_below_the_bound_is_one_request(s3: FaultyS3, storage: ObjectStorage) -> None:
    storage._store = None  # a client for small requests, which would end it too early
    publish(storage, bytes(12 << 20))
    assert s3.requests == ["PUT"]


def test_a_small_segment_is_not_waited_for_longer_than_another_request(
    storage: ObjectStorage,
) -> None:
    storage._uploads = None
    publish(storage, OURS)


def test_a_claim_whose_answer_is_lost_is_one_claim(s3: FaultyS3, storage: ObjectStorage) -> None:
    process = ThisProcess("test")
    s3.next("PUT", answer_lost)
    with claim(storage, process) as older:
        assert older.run == 1
        older.check()
        s3.next("PUT", closed_without_answer)
        with claim(storage, process) as newer:
            assert newer.run == 2
            newer.check()
            with pytest.raises(CheckpointError, match="taken over by a newer run"):
                older.check()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload in parts what is large for a test; S3 takes no smaller ones."""
    monkeypatch.setattr(object_storage, "_MAX_SINGLE_PUT", 1_000)
    monkeypatch.setattr(object_storage, "_PART", 5 << 20)


# The requests that begin an upload, bring a part, and make one object of the parts.
@pytest.mark.long
@pytest.mark.parametrize("moment", [("POST", 0), ("PUT", 1), ("POST", 1)], ids=str)
@pytest.mark.parametrize(
    "fault", [PASSING[name] for name in ("500", "409", "400", "cut", "lost", "closed")]
)
@pytest.mark.usefixtures("small_parts")
def test_a_segment_in_parts_that_meets_a_fault_is_there_once(
    s3: FaultyS3, storage: ObjectStorage, moment: tuple[str, int], fault: Fault
) -> None:
    method, number = moment
    s3.next(method, *[passed] * number, fault)
    data = bytes(6 << 20)
    publish(storage, data)
    assert storage.read(NAME, limit=len(data)) == data
    with pytest.raises(FileExistsError):
        publish(storage, data[:-1] + b"!")


@pytest.mark.usefixtures("small_parts")
def test_the_end_of_an_upload_may_be_an_error_of_status_200(
    s3: FaultyS3, storage: ObjectStorage
) -> None:
    """S3 begins such an answer before it has put the parts together."""
    s3.next("POST", passed, answered(200, "InternalError"))
    data = bytes(6 << 20)
    publish(storage, data)
    assert storage.read(NAME, limit=len(data)) == data
    storage.delete(NAME)
    s3.next("POST", passed, *[answered(200, "SlowDown")] * 3)
    with pytest.raises(CheckpointError) as caught:
        publish(storage, data)
    assert str(caught.value) == (
        f"cannot write {storage.location}/{NAME}: the service answered with an error (SlowDown), "
        "3 times"
    )


@pytest.mark.usefixtures("small_parts")
def test_parts_that_are_one_object_already_are_recognised(
    s3: FaultyS3, storage: ObjectStorage
) -> None:
    s3.next("POST", passed, answer_lost, answered(404, "NoSuchUpload"))
    data = bytes(6 << 20)
    publish(storage, data)
    assert storage.read(NAME, limit=len(data)) == data


SECRETS = {"access_key_id": "canary-id", "secret_access_key": "canary-secret"}
REFUSALS = {
    (403, "AccessDenied"): (
        "the credentials do not allow it (AccessDenied); allow reading, writing, listing and "
        f"deleting in the bucket '{BUCKET}'"
    ),
    (403, "InvalidAccessKeyId"): (
        "the service does not accept the credentials (InvalidAccessKeyId); check them, and the "
        "endpoint"
    ),
    (403, "SignatureDoesNotMatch"): (
        "the service does not accept the credentials (SignatureDoesNotMatch); check them, and the "
        "endpoint"
    ),
    (400, "ExpiredToken"): "the credentials have expired (ExpiredToken); renew them",
    (401, "canary-secret"): (
        "the service does not accept the credentials (401); check them, and the endpoint"
    ),
    (400, "AuthorizationHeaderMalformed"): (
        f"the bucket '{BUCKET}' is in another region (AuthorizationHeaderMalformed); give the "
        "storage option region"
    ),
    (301, "PermanentRedirect"): (
        f"the bucket '{BUCKET}' is in another region (PermanentRedirect); give the storage option "
        "region"
    ),
    (400, "Strange"): "the service answered 400 (Strange)",
    (403, "Strange"): "the service answered 403 (Strange)",
    (403, "RequestTimeTooSkewed"): (
        "the clock of this machine is wrong (RequestTimeTooSkewed); set it by NTP"
    ),
    (403, "InvalidObjectState"): (
        "the object is archived (InvalidObjectState); restore it, and except the location from the "
        "rules that archive objects"
    ),
    (403, "QuotaExceeded"): (
        "the store has no more room (QuotaExceeded); free some, or raise the quota, and start again"
    ),
    (403, "AllAccessDisabled"): (
        "the service has suspended the account (AllAccessDisabled); ask it why"
    ),
    (400, "KMS.DisabledException"): (
        f"the KMS key of the bucket '{BUCKET}' cannot be used (KMS.DisabledException); enable it, "
        "and allow its use"
    ),
    (403, "AccessDenied</Code><Message>not authorized to perform: kms:Decrypt</Message><Code>"): (
        f"the KMS key of the bucket '{BUCKET}' cannot be used (AccessDenied); enable it, and allow "
        "its use"
    ),
    (400, "InvalidRequest"): "the service answered 400 (InvalidRequest)",
    (400, "InvalidRequest</Code><Message>with Object Lock parameters</Message><Code>"): (
        f"the bucket '{BUCKET}' has an object lock, which needs a checksum (InvalidRequest); give "
        "the storage option checksum_algorithm=sha256"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("answer", "reason"), REFUSALS.items())
def test_a_refusal_is_one_clear_line_without_keys(
    s3: FaultyS3, location: str, answer: tuple[int, str], reason: str
) -> None:
    status, code = answer
    for method in ("GET", "PUT", "DELETE"):
        s3.always(method, answered(status, f"{code}</Code><AWSKey>canary-id</AWSKey><Code>"))
    calls: list[Callable[[ObjectStorage], object]] = [
        lambda storage: storage.create(NAME, b""),
        lambda storage: storage.read(NAME, limit=1),
        lambda storage: storage.list("segments"),
        lambda storage: storage.delete(NAME),
    ]
    options = s3_options(s3.endpoint) | SECRETS
    with closing(open_object_storage(location, options)) as storage:
        for call in calls:
            with pytest.raises(CheckpointError) as caught:
                call(storage)
            assert str(caught.value).endswith(f": {reason}")
            assert "\n" not in str(caught.value)
            assert caught.value.__cause__ is not None
            assert "canary" not in "".join(traceback.format_exception(caught.value))
    assert s3.count("PUT") == 1


_PROBED = (
    r"^cannot use s3://.*, which is tried with a small object first: cannot delete .*/probes/.*: "
    r".*do not allow it"
)


def test_a_bucket_that_is_read_only_can_be_read(
    s3: FaultyS3, storage: ObjectStorage, theirs: Callable[[], None]
) -> None:
    theirs()
    for method in ("PUT", "POST", "DELETE"):
        s3.always(method, answered(403, "AccessDenied"))
    assert storage.read(NAME, limit=len(THEIRS)) == THEIRS
    with pytest.raises(CheckpointError, match="the credentials do not allow it"):
        publish(storage, OURS)
    with pytest.raises(CheckpointError, match=_PROBED):
        check_conditional_create(storage)


def test_a_bucket_that_denies_deletes_keeps_no_probe(s3: FaultyS3, storage: ObjectStorage) -> None:
    s3.always("DELETE", answered(403, "AccessDenied"))
    with pytest.raises(CheckpointError, match=_PROBED):
        check_conditional_create(storage)
    assert s3.count("PUT") == 0


def test_a_store_that_ignores_the_condition_is_refused(
    s3: FaultyS3, storage: ObjectStorage
) -> None:
    s3.always("PUT", condition_ignored)
    with pytest.raises(CheckpointError) as caught:
        check_conditional_create(storage)
    assert str(caught.value) == (
        f"cannot use {storage.location}: the store ignores the condition of a put (If-None-Match) "
        "and replaced an object that it was to keep, so two runs could both write one entry; use "
        "a store with conditional writes, as AWS, Google and Azure have"
    )
    assert storage.list("probes") == ()


def test_a_store_that_does_not_know_the_condition_is_refused(
    s3: FaultyS3, storage: ObjectStorage
) -> None:
    s3.always("PUT", answered(501, "NotImplemented"))
    with pytest.raises(CheckpointError) as caught:
        check_conditional_create(storage)
    assert str(caught.value).endswith(
        ": the store does not know what was asked of it (NotImplemented); use one with "
        "conditional writes"
    )


def test_a_service_that_is_gone_is_a_clear_error(location: str) -> None:
    with faulty_s3("http://unused") as gone:
        pass
    with closing(open_object_storage(location, s3_options(gone.endpoint))) as storage:
        with pytest.raises(CheckpointError) as caught:
            create(storage, OURS)
        assert str(caught.value) == (
            f"cannot write {location}/{NAME}: the service at {gone.endpoint[7:]} cannot be "
            "reached, 3 times; check the endpoint and the network"
        )


def test_a_service_that_does_not_answer_is_a_clear_error(
    s3: FaultyS3, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = {**object_clients._RETRY, "max_retries": 0}
    monkeypatch.setattr(object_clients, "_RETRY", retry)
    options = s3_options(s3.endpoint) | {"timeout": "100ms"}
    for method in ("PUT", "GET"):
        s3.always(method, unanswered)
    with closing(open_object_storage(location, options)) as storage:
        for doing, call in (("write", create), ("write", publish), ("read", read)):
            with pytest.raises(CheckpointError) as caught:
                call(storage, OURS)
            assert str(caught.value) == (
                f"cannot {doing} {location}/{NAME}: the service at {s3.endpoint[7:]} did not "
                "answer in time; check the endpoint and the network"
            )
