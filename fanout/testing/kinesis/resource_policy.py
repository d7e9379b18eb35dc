"""Decide by the policy of a stream or a consumer what another account may do with it."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from fanout.core.stored_json import MALFORMED_JSON

_ACCOUNT = re.compile(r"arn:aws[^:]*:(?:iam|sts)::([0-9]{12}):.*|([0-9]{12})")


def read_policy(text: str) -> list[dict[str, Any]]:
    """Return the statements of a policy; a text that is none is a ValueError."""
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
    except (*MALFORMED_JSON, msgspec.ValidationError) as error:
        raise ValueError("The policy is not a JSON object.") from error
    return [each for each in _list(document.get("Statement", [])) if isinstance(each, dict)]


def allows(policy: str, account: str, action: str, resource: str) -> bool:
    """Say whether a policy allows an account an action; one statement that denies is enough."""
    effects = {
        statement.get("Effect")
        for statement in read_policy(policy)
        if _names(statement.get("Principal"), account)
        and any(fnmatchcase(f"kinesis:{action}", each) for each in _list(statement.get("Action")))
        and any(fnmatchcase(resource, each) for each in _list(statement.get("Resource")))
    }
    return "Allow" in effects and "Deny" not in effects


def _names(principal: Any, account: str) -> bool:
    given = principal.get("AWS") if isinstance(principal, dict) else principal
    accounts = (_ACCOUNT.fullmatch(str(each)) for each in _list(given))
    return "*" in _list(given) or any(
        account in found.groups() for found in accounts if found is not None
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
