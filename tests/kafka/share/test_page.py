"""The examples and tables of docs/share-groups.md."""

from __future__ import annotations

import asyncio
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanout.core.backoff import Backoff
from fanout.kafka.share.client_options import ClientOptions
from fanout.kafka.share.options import SETTINGS, ShareOptions
from tests.support.kafka.topics import Topic

if TYPE_CHECKING:
    import pytest

    from fanout.testing.kafka.broker import KafkaBroker

PAGE = (Path(__file__).parents[3] / "docs" / "share-groups.md").read_text()
EXAMPLE, BAD_RECORDS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def local(code: str, servers: str) -> str:
    return code.replace("broker-1:9093", servers).replace('"SSL"', '"PLAINTEXT"')


async def test_the_example_reads_what_is_there(
    kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = await asyncio.to_thread(Topic, kafka_broker, name="orders-of-a-share-group")
    await asyncio.to_thread(topic.put, 10)
    code = local(EXAMPLE, kafka_broker.bootstrap_servers).replace('"orders"', repr(topic.name))
    names: dict[str, Any] = {}
    exec(code.removesuffix("asyncio.run(main())\n"), names)  # noqa: S102 - the page is ours
    async with asyncio.TaskGroup() as tasks:
        example = tasks.create_task(names["main"]())
        while not re.search(r"^member-\d 10$", capsys.readouterr().out, re.MULTILINE):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        example.cancel()


def test_the_example_for_bad_records_is_one_that_can_be() -> None:
    imports = "from fanout.kafka import Cluster, KafkaShareSource, Security\n"
    names: dict[str, Any] = {}
    exec(imports + local(BAD_RECORDS, "127.0.0.1:9092"), names)  # noqa: S102 - the page is ours
    assert names["source"].max_deliveries == 3


def test_the_table_has_every_option_with_its_default() -> None:
    section = PAGE.split("## Options")[1]
    message: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[a-z_`, ]+`) \| ([^|]+) \|", section, re.MULTILINE):
        several = defaults.split(",") if "," in names else [defaults]
        message |= dict(zip(re.findall("[a-z_]+", names), several, strict=True))
    assert message.keys() == {field.name for field in fields(ShareOptions)}
    for field in fields(ShareOptions):
        if field.default is not MISSING and field.name not in {"backoff", "max_bytes_in_flight"}:
            assert message[field.name].strip(' `"') == f"{field.default}".removesuffix(".0")
    backoff = eval(message["backoff"].strip(" `"), {"Backoff": Backoff})  # noqa: S307 - the page is ours
    assert backoff == ShareOptions.__dataclass_fields__["backoff"].default


def test_the_page_names_every_setting_of_a_group_and_every_option_of_the_client() -> None:
    for name in SETTINGS:
        assert f"`{name}`" in PAGE
    for field in fields(ClientOptions):
        if field.name != "connections_max_idle":
            dotted = field.name.replace("_", ".")
            suffix = "" if dotted.endswith("bytes") else ".ms"
            assert f"`{dotted}{suffix}`" in PAGE
