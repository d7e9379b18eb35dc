from __future__ import annotations

import json

from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from fanout.testing.kinesis.frames import encode_event, encode_exception, encode_frame, payload_of

NAMES = st.text(min_size=1, max_size=60).filter(lambda text: len(text.encode()) <= 255)


@given(st.dictionaries(NAMES, st.text(max_size=100), max_size=5), st.binary(max_size=1000))
def test_botocore_reads_back_headers_and_payload(headers: dict[str, str], payload: bytes) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(encode_frame(headers, payload))
    (message,) = buffer
    assert (message.headers, message.payload) == (headers, payload)
    assert payload_of(encode_frame(headers, payload)) == payload


def test_botocore_takes_an_event_frame_for_an_event() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(encode_event("SubscribeToShardEvent", b"{}"))
    (message,) = buffer
    assert message.to_response_dict()["status_code"] == 200


def test_botocore_takes_an_exception_frame_for_an_error() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(encode_exception("KMSThrottlingException", "slow down"))
    (message,) = buffer
    answer = message.to_response_dict()
    assert answer["status_code"] == 400
    assert answer["headers"][":exception-type"] == "KMSThrottlingException"
    assert json.loads(answer["body"]) == {"message": "slow down"}
