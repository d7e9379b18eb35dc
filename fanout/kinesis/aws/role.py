"""The role that a reader of Kinesis assumes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Self, final

from fanout.core.sentence import Option, Sentence
from fanout.errors import OptionError

# AWS API reference, AssumeRole.
_EXTERNAL_ID: Final = re.compile(r"[\w+=,.@:/-]{2,1224}", re.ASCII)
_SESSION_NAME: Final = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)
_DEFAULT_SESSION_NAME: Final = "fanout"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedRole:
    """A role, and what is sent to assume it."""

    arn: str
    # What the role's trust policy asks for, where it is in another account.
    external_id: str | None = field(default=None, repr=False)
    # What the logs of the role's account name this reader.
    session_name: str = _DEFAULT_SESSION_NAME

    @classmethod
    def parse(
        cls, role_arn: str | None, external_id: str | None, role_session_name: str | None
    ) -> Self | None:
        """Return the role that options name; None without one."""
        if external_id is not None and not _EXTERNAL_ID.fullmatch(external_id):
            # Not shown: it keeps others from having the role assumed for them.
            raise OptionError(
                Option("external_id"), " must be 2 to 1224 letters, digits or _ + = , . @ : / -"
            )
        if role_session_name is not None and not _SESSION_NAME.fullmatch(role_session_name):
            raise OptionError(
                Option("role_session_name", role_session_name),
                " must be 2 to 64 letters, digits or _ + = , . @ -",
            )
        if role_arn is not None:
            session_name = role_session_name or _DEFAULT_SESSION_NAME
            return cls(arn=role_arn, external_id=external_id, session_name=session_name)
        for name, value in (("external_id", external_id), ("role_session_name", role_session_name)):
            if value is not None:
                raise OptionError(
                    Option(name),
                    Sentence.of(" is for the role of {role_arn}: set {role_arn}, or leave "),
                    Option(name),
                    " out",
                )
        return None

    @property
    def assume_role_options(self) -> dict[str, str]:
        """The parameters of AssumeRole beside the ARN."""
        options = {"RoleSessionName": self.session_name}
        return options if self.external_id is None else options | {"ExternalId": self.external_id}
