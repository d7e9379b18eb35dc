from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from moto.s3.models import S3Backend

from fanout.testing.s3_clients import BUCKET
from fanout.testing.s3_server import serve_s3
from tests.support.s3 import s3_client

if TYPE_CHECKING:
    import pytest


def test_of_conditional_puts_at_once_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    put = S3Backend.put_object

    def put_later(*args: Any, **options: Any) -> Any:
        time.sleep(0.05)  # the other writers ask whether the object is there
        return put(*args, **options)

    monkeypatch.setattr(S3Backend, "put_object", put_later)
    with serve_s3() as endpoint:

        def create(content: bytes) -> str:
            with closing(s3_client(endpoint)) as client:
                try:
                    client.put_object(
                        Bucket=BUCKET, Key="one-writer", Body=content, IfNoneMatch="*"
                    )
                except ClientError as error:
                    return str(error.response["Error"]["Code"])
            return "created"

        with ThreadPoolExecutor(4) as pool:
            outcomes = sorted(pool.map(create, [b"a", b"b", b"c", b"d"]))
    assert outcomes == ["PreconditionFailed"] * 3 + ["created"]
