from __future__ import annotations

import pytest

from fanout.errors import OptionError
from fanout.kinesis.aws.endpoint import check_endpoint


@pytest.mark.parametrize(
    "url",
    [
        "https://kinesis.eu-west-1.amazonaws.com",
        "http://localhost:1",
        "http://127.0.0.1:1",
        "http://127.9.9.9",
        "http://[::1]:1",
    ],
)
def test_https_and_plain_http_on_this_machine_are_allowed(url: str) -> None:
    check_endpoint(url, insecure=False)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:4567", "http://kinesis.example", "http://127.0.0.1.example", "http://"]
)
def test_plain_http_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="without TLS"):
        check_endpoint(url, insecure=False)


def test_plain_http_elsewhere_is_allowed_when_spelled_out() -> None:
    check_endpoint("http://10.0.0.1:4567", insecure=True)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:4567", "localhost:4567", ""])
def test_what_is_not_an_http_url_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="must begin with https://"):
        check_endpoint(url, insecure=True)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_endpoint_with_a_password_is_refused_without_naming_it(scheme: str) -> None:
    with pytest.raises(OptionError, match="must not hold a user or a password") as reported:
        check_endpoint(f"{scheme}://me:canary@kinesis.example:1", insecure=True)
    assert "canary" not in str(reported.value)
