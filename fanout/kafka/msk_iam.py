"""Tokens for Amazon MSK, which knows users by IAM: what AWS_MSK_IAM is to Kafka's own tools."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Final

from fanout._exports import naming_extras
from fanout.core.error_text import text_of
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MSK_IAM: Final = "AWS_MSK_IAM"
"""The mechanism of Kafka's own tools with Amazon's library for MSK."""

# https://docs.aws.amazon.com/msk/latest/developerguide/msk-get-bootstrap-brokers.html
_REGION: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


def msk_iam_token(servers: str | None) -> Callable[[], Awaitable[str]]:
    """Return a function that signs a token by the credentials of AWS's default chain. It blocks.

    A token is signed on this machine, and is valid for 15 minutes; the broker checks it. The region
    is
    the one in the names of the brokers, else that of the environment or of AWS's configuration.

    Raises:
        OptionError: No region is known.
        SetupError: The signer of MSK is not installed.
    """
    with naming_extras(MSK_IAM):
        from aiokafka.errors import AuthenticationFailedError  # noqa: PLC0415 - optional extras
        from aws_msk_iam_sasl_signer.MSKAuthTokenProvider import (  # noqa: PLC0415
            generate_auth_token,
        )
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    region = _region(servers or "")

    async def token() -> str:
        try:
            signed, _ = await asyncio.to_thread(generate_auth_token, region)
        except BotoCoreError as error:
            raise AuthenticationFailedError(
                f"{MSK_IAM} cannot use the credentials of AWS: {text_of(error)}"
            ) from error
        except (AttributeError, ValueError) as error:  # the signer reads those of None
            raise AuthenticationFailedError(
                f"{MSK_IAM} finds no credentials of AWS: set AWS_PROFILE, or AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY, or run where a role is attached"
            ) from error
        return str(signed)

    return token


def _region(servers: str) -> str:
    from botocore.session import Session  # noqa: PLC0415 - an optional extra

    if match := _REGION.search(servers):
        return match[1]
    region = os.environ.get("AWS_REGION") or Session().get_config_variable("region")
    if not region:
        raise OptionError(
            f"{MSK_IAM} needs a region, and the names of the brokers have none: set AWS_REGION"
        )
    return str(region)
