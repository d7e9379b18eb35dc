"""`GlueSchemaRegistry`: schemas in the AWS Glue Schema Registry."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, final

from botocore.exceptions import BotoCoreError, ClientError

from fanout.core.option_checks import check_text
from fanout.core.sentence import Option, Sentence
from fanout.decoding.registry import AnyRegistry, Found, Id, Schemas
from fanout.errors import OptionError, RetryLaterError
from fanout.kinesis.aws.client_config import go_past_proxies, pinned_config
from fanout.kinesis.aws.credentials import hide_secrets
from fanout.kinesis.aws.endpoint import check_endpoint
from fanout.kinesis.aws.error_hints import explain, name_of
from fanout.kinesis.aws.role import AssumedRole
from fanout.kinesis.aws.session import open_session

_ATTEMPTS: Final = 3
_TIMEOUT: Final = 10.0
_SERVICE: Final = "Glue"


@final
@dataclass(frozen=True, slots=True)
class GlueSchemaRegistry(AnyRegistry):
    """A registry of AWS Glue, and how to connect to it.

    Credentials are found as those of `KinesisSource`.

    Args:
        name: Its name, for `latest` and `id_of`: an id is of no registry.
        region: The AWS region; None takes it from the environment or the profile.
        endpoint_url: An endpoint instead of the region's.
        role_arn: A role to assume.

    Raises:
        OptionError: If an option is malformed.
    """

    framing: ClassVar[str] = "glue"

    name: str = "default-registry"
    region: str | None = field(default=None, kw_only=True)
    endpoint_url: str | None = field(default=None, kw_only=True)
    role_arn: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_text("name", self.name, or_none=False)
        for option in ("region", "endpoint_url", "role_arn"):
            check_text(option, getattr(self, option))
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url, insecure=False, service=_SERVICE)

    def __str__(self) -> str:
        return self.name

    def _latest(self, subject: str) -> Schemas | None:
        newest = {"LatestVersion": True}
        answer = self._call("get_schema_version", subject, SchemaVersionNumber=newest)
        return None if answer is None else (str(answer["SchemaDefinition"]),)

    def _find(
        self, subject: str, text: str, about: dict[str, Any], *, register: bool, guid: bool
    ) -> str | None:
        del guid  # each id is one
        if about["references"]:
            raise OptionError(Option("references"), " are for a SchemaRegistry: Glue has none")
        operation = "register_schema_version" if register else "get_schema_by_definition"
        answer = self._call(operation, subject, SchemaDefinition=text)
        if answer is None and register:
            new = {
                "SchemaName": subject,
                "DataFormat": about["schemaType"],
                "Compatibility": "BACKWARD",
            }
            registry = {"RegistryName": self.name}
            answer = self._call("create_schema", RegistryId=registry, SchemaDefinition=text, **new)
        if answer is None:
            return None
        status = answer.get("Status", answer.get("SchemaVersionStatus"))
        if status == "PENDING":
            raise RetryLaterError("the registry compares the schema with older ones: ask later")
        if status != "AVAILABLE":
            raise OptionError(f"the registry refuses the schema: it is {status}")
        return str(answer["SchemaVersionId"])

    def _ask(self, number: Id) -> Found:
        version = str(number)
        answer = self._call("get_schema_version", SchemaVersionId=version)
        if answer is None:
            return Found.nothing(f"the registry has no version {version} of a schema")
        return Found((str(answer["SchemaDefinition"]),), str(answer["DataFormat"]))

    def _call(self, operation: str, subject: str = "", **parameters: Any) -> dict[str, Any] | None:
        """Make a call in a thread, as a loop may run in this one; None where nothing is found."""
        if subject:
            parameters["SchemaId"] = {"RegistryName": self.name, "SchemaName": subject}
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._make(operation, parameters)).result()

    async def _make(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        config = pinned_config(attempts=_ATTEMPTS, connect_timeout=_TIMEOUT, read_timeout=_TIMEOUT)
        role = AssumedRole.parse(self.role_arn, None, None)
        services = ("glue", "sts")
        try:
            session, region = await open_session(None, self.region, role, services=services)
            options = {"region_name": region, "endpoint_url": self.endpoint_url, "config": config}
            async with session.client("glue", **options) as client:
                # The environment and the profile may set an endpoint too.
                check_endpoint(client.meta.endpoint_url, insecure=False, service=_SERVICE)
                go_past_proxies(client)
                hide_secrets(client)
                answer: dict[str, Any] = await getattr(client, operation)(**parameters)
                return answer
        except (ClientError, BotoCoreError) as error:
            if name_of(error) == "EntityNotFoundException":
                return None
            if name_of(error) == "InvalidInputException":
                raise OptionError("the registry of AWS Glue refuses the schema: ", error) from error
            answers = f"the registry of AWS Glue answers {name_of(error)}"
            # The hints about answers are those of Kinesis.
            known = isinstance(error, BotoCoreError)
            reason = explain(error, answers) if known else Sentence(f"{answers}: ", error)
            raise RetryLaterError(reason) from error
