"""Open an aioboto3 session that has a region and credentials, without blocking the event loop.

The module uses private names of aioboto3 and botocore: `_session` of an aioboto3 session, and
`_credentials` of the botocore session inside; see `aws.raw_bodies` for the supported versions.
"""

from __future__ import annotations

import asyncio
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import aioboto3
import botocore.session

from fanout.core.sentence import Sentence
from fanout.errors import SetupError
from fanout.kinesis.aws.client_config import pinned_config
from fanout.kinesis.aws.credentials import (
    RenewableCredentials,
    assume_role,
    find_credentials,
    inner_session,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from fanout.kinesis.aws.role import AssumedRole

# The loaders of botocore's data files for the sessions that are made here, by the value of the
# `data_path` setting, an additional directory of such files.
_LOADERS: Final[dict[str | None, Any]] = {}
# The services whose files a loader has read.
_LOADED: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()
_KINESIS: Final = ("kinesis", "sts")


async def open_session(
    session: aioboto3.Session | None,
    region: str | None,
    role: AssumedRole | None,
    *,
    services: Collection[str] = _KINESIS,
) -> tuple[aioboto3.Session, str]:
    """Return a session that makes clients of services without blocking the loop, and their region.

    Its credentials are RenewableCredentials, found while this call runs: from the environment, the
    files and the machine's role, or from the session that is passed in, which is not changed. Keys
    that were passed to that session itself stay. A role is assumed with them, now and each time
    that the role's own expire: a stream runs for longer than the hour that they usually last. A
    role that may not be assumed is a ClientError of botocore.
    """
    loaded, known_region = await asyncio.to_thread(_load, session, region, services)
    held = inner_session(loaded)._credentials  # noqa: SLF001  # a public getter would load them
    if role is None and isinstance(held, RenewableCredentials):
        return loaded, known_region
    find = partial(find_credentials, session)
    if role is not None:
        find = partial(assume_role, loaded, role, known_region, find)
    credentials = await find()
    if credentials is None:
        raise SetupError(
            "no AWS credentials were found: configure a profile, a role of this machine, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return _signing_with(RenewableCredentials(credentials, find), loaded), known_region


def _load(
    session: aioboto3.Session | None, region: str | None, services: Collection[str]
) -> tuple[aioboto3.Session, str]:
    """Have a session read the files that it needs to make a client; it keeps what it read."""
    session = session or _new_session()
    region = region or session.region_name
    if region is None:
        raise SetupError(
            Sentence.of(
                "no AWS region is known: pass {region:region=...}, or set AWS_DEFAULT_REGION or "
                "the profile's"
            )
        )
    _ = session.available_profiles  # reads the configuration
    bundle = inner_session(session).get_config_variable("ca_bundle")
    if bundle is not None and not Path(bundle).exists():
        raise SetupError(
            f"there is no CA bundle {bundle}: correct AWS_CA_BUNDLE, or ca_bundle of the profile"
        )
    loader = inner_session(session).get_component("data_loader")
    loaded = _LOADED.setdefault(loader, set())
    if missing := set(services) - loaded:
        twin = botocore.session.Session()
        twin.register_component("data_loader", loader)
        twin.set_credentials("unused", "unused")
        for service in missing:
            # Unlike an asyncio session, a plain one makes clients in a thread that has no loop.
            config = pinned_config(attempts=1)
            twin.create_client(service, region_name=region, config=config).close()
        loaded |= missing
    return session, region


def _new_session() -> aioboto3.Session:
    """Make a session that shares the files which earlier ones of this process have read."""
    session = aioboto3.Session()
    inner = inner_session(session)
    data_path = inner.get_config_variable("data_path")
    loader = _LOADERS.setdefault(data_path, inner.get_component("data_loader"))
    inner.register_component("data_loader", loader)
    return session


def _signing_with(credentials: RenewableCredentials, session: aioboto3.Session) -> aioboto3.Session:
    """Return a copy of a session that has other credentials; the session is not changed."""
    twin = copy(session)
    twin._session = copy(inner_session(session))  # noqa: SLF001  # aioboto3 would register handlers again
    twin._session._credentials = credentials  # noqa: SLF001  # set_credentials takes keys only
    return twin
