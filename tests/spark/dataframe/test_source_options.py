"""String options of a DataFrame describe the source that Python's keywords describe."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import aioboto3
import pytest

import fanout
from fanout.decoding import Avro, Json, SchemaRegistry
from fanout.errors import OptionError
from fanout.kafka import Cluster, KafkaSource, Security, ShuffleSource
from fanout.kinesis import KinesisSource
from fanout.spark.dataframe.kafka_source_options import KAFKA_REFUSED
from fanout.spark.dataframe.source_options import (
    DECODE_REFUSED,
    LANDING_OPTIONS,
    SOURCE_OPTIONS,
    LandedSource,
    refuse_without_source,
    source_from_options,
)
from fanout.testing.kinesis.server import KinesisServer
from tests.support.schema_registry import embedded_registry

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
KINESIS = {"source": "kinesis", "stream": "orders", "consumer": "etl"}
KAFKA = {"source": "kafka", "kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
LOCAL = Cluster("localhost:9092", security=Security(protocol="PLAINTEXT"))
TWO_TOPICS = ["orders", "returns"]


def made(options: dict[str, str]) -> object:
    # Spark gives a Python data source the names in lower case.
    return source_from_options({name.lower(): value for name, value in options.items()})


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as refused:
        made(options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({}, KinesisSource(stream="orders", consumer="etl")),
        (
            {"stream": "orders,payments"},
            KinesisSource(stream=["orders", "payments"], consumer="etl"),
        ),
        (
            {"startingPosition": "TRIM_HORIZON"},
            KinesisSource(stream="orders", consumer="etl", start="TRIM_HORIZON"),
        ),
        (
            {"startingPosition": "latest"},
            KinesisSource(stream="orders", consumer="etl", start="LATEST"),
        ),
        (
            {"startingPosition": "2026-11-22T08:00:00+02:00"},
            KinesisSource(
                stream="orders",
                consumer="etl",
                start=datetime(2026, 11, 22, 8, tzinfo=timezone(timedelta(hours=2))),
            ),
        ),
        (
            {"startingPosition": '{"shardId-000000000000": "4961", "*": "2026-11-22T08:00:00Z"}'},
            KinesisSource(
                stream="orders",
                consumer="etl",
                start={
                    "shardId-000000000000": "4961",
                    "*": datetime(2026, 11, 22, 8, tzinfo=UTC),
                },
            ),
        ),
        (
            {
                "mode": "Polling",
                "region": "eu-west-1",
                "endpointUrl": "http://kinesis:4567",
                "insecure": "true",
                "roleArn": "arn:aws:iam::111122223333:role/reader",
                "externalId": "a-7",
                "roleSessionName": "orders-etl",
                "failOnDataLoss": "false",
                "onBadAggregate": "gap",
                "onBadFrame": "gap",
                "maxBytesInFlight": "100000000",
            },
            KinesisSource(
                stream="orders",
                consumer="etl",
                mode="polling",
                region="eu-west-1",
                endpoint_url="http://kinesis:4567",
                insecure=True,
                role_arn="arn:aws:iam::111122223333:role/reader",
                external_id="a-7",
                role_session_name="orders-etl",
                on_data_loss="earliest",
                on_bad_aggregate="gap",
                on_bad_frame="gap",
                max_bytes_in_flight=100_000_000,
            ),
        ),
    ],
)
def test_options_of_kinesis(options: dict[str, str], source: KinesisSource) -> None:
    assert made(KINESIS | options) == source


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {}),
        ({"subscribe": "orders, returns"}, {"topics": TWO_TOPICS}),
        ({"startingOffsets": "earliest"}, {"start": "earliest"}),
        ({"startingOffsets": "Latest"}, {"start": "latest"}),
        (
            {"startingOffsets": '{"orders": {"0": 23, "1": -2, "2": -1}}'},
            {"start": {"orders-0": 23, "orders-1": "earliest", "orders-2": "latest"}},
        ),
        (
            {"startingTimestamp": "1763800000123"},
            {"start": datetime.fromtimestamp(1763800000, UTC) + timedelta(milliseconds=123)},
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"0": 1763800000000}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            {"start": {"orders-0": datetime.fromtimestamp(1763800000, UTC)}},
        ),
        ({"failOnDataLoss": "true"}, {"on_data_loss": "fail"}),
        ({"failOnDataLoss": "FALSE"}, {"on_data_loss": "earliest"}),
        ({"includeHeaders": "true"}, {}),
        (
            {
                "kafka.group.id": "etl",
                "kafka.client.rack": "a",
                "kafka.isolation.level": "read_uncommitted",
                "maxBytesInFlight": "100000000",
            },
            {
                "group_id": "etl",
                "client_rack": "a",
                "isolation_level": "read_uncommitted",
                "max_bytes_in_flight": 100_000_000,
            },
        ),
        (
            {"kafka.fetch.max.bytes": "1048576", "kafka.request.timeout.ms": "5000"},
            {"consumer_options": {"fetch.max.bytes": "1048576", "request.timeout.ms": "5000"}},
        ),
    ],
)
def test_options_of_kafka(options: dict[str, str], fields: dict[str, object]) -> None:
    expected = {"cluster": LOCAL, "topics": ["orders"], "start": "latest"} | fields
    assert made(KAFKA | options) == KafkaSource(**expected)  # type: ignore[arg-type]


def test_topics_are_selected_by_pattern_or_partition() -> None:
    options = {name: value for name, value in KAFKA.items() if name != "subscribe"}
    by_pattern = made(options | {"subscribePattern": "orders.*"})
    assert by_pattern == KafkaSource(cluster=LOCAL, pattern="orders.*", start="latest")
    assigned = made(options | {"assign": '{"orders": [0, 1], "returns": [4]}'})
    partitions = ["orders-0", "orders-1", "returns-4"]
    assert assigned == KafkaSource(cluster=LOCAL, partitions=partitions, start="latest")


def test_a_client_and_its_security_have_the_names_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "canary")
    source = made(
        KAFKA
        | {
            "kafka.bootstrap.servers": "a:9093,b:9093",
            "kafka.client.id": "etl",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.username": "reader",
            "kafka.ssl.truststore.location": "ca.pem",
            "kafka.ssl.truststore.type": "PEM",
        }
    )
    assert isinstance(source, KafkaSource)
    assert source.cluster == Cluster(
        "a:9093,b:9093",
        client_id="etl",
        security=Security(
            mechanism="SCRAM-SHA-256", username="reader", password="canary", ca_file="ca.pem"
        ),
    )


def test_amazon_msk_is_reached_by_its_mechanism_alone() -> None:
    broker = "b-1.orders.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098"
    source = made(
        KAFKA | {"kafka.bootstrap.servers": broker, "kafka.sasl.mechanism": "AWS_MSK_IAM"}
    )
    assert isinstance(source, KafkaSource)
    security = source.cluster.security
    assert isinstance(security, Security)
    assert (security.protocol, security.sasl) == ("SASL_SSL", "OAUTHBEARER")
    sentence = refusal(KAFKA | {"kafka.sasl.client.callback.handler.class": "IAMClientHandler"})
    assert sentence.endswith("kafka.sasl.mechanism may be AWS_MSK_IAM without one")


def test_options_of_a_shuffle() -> None:
    options = {
        "source": "shuffle",
        "partitionCount": "8",
        "onBadFrame": "gap",
        "producerTimeout": "30",
        "onSilentProducer": "fail",
    }
    kafka = KafkaSource(cluster=LOCAL, topics=["orders"], start="latest")
    expected = ShuffleSource(
        kafka,
        partition_count=8,
        on_bad_frame="gap",
        producer_timeout=30.0,
        on_silent_producer="fail",
    )
    assert made(KAFKA | options) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"strem": "x"}, "the option 'strem' is not known; did you mean 'stream'?"),
        (
            {"startingPostion": "LATEST"},
            "the option 'startingpostion' is not known; did you mean 'startingPosition'?",
        ),
        ({"zzz": "x"}, "the option 'zzz' is not known"),
        ({"streamName": "x"}, "the option 'streamname' is refused: write 'stream'"),
        ({"kinesis.region": "x"}, "the option 'kinesis.region' is refused: write 'region'"),
        ({"initialPosition": "x"}, "the option 'initialposition' is refused: write 'startingPos"),
        (
            {"startingPosition": "yesterday"},
            (
                "startingPosition='yesterday' must be TRIM_HORIZON, LATEST, a time with its zone "
                "such as 2026-11-22T08:00:00+00:00, or JSON that gives a shard one of these or a "
                'sequence number, like {"shardId-000000000000": "4961", "*": "LATEST"}'
            ),
        ),
        ({"startingPosition": "2026-11-22T08:00:00"}, "must be TRIM_HORIZON, LATEST, a time with"),
        ({"startingPosition": "{nonsense"}, "startingPosition='{nonsense' must be JSON like"),
        ({"stream": "a stream"}, "stream='a stream' is neither a stream's name"),
        ({"mode": "fast"}, "mode='fast' must be efo or polling"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss='perhaps' must be true or false"),
        ({"maxBytesInFlight": "1g"}, "maxBytesInFlight='1g' must be a whole number"),
        ({"consumer": " "}, "consumer is empty; give it a value, or leave it out"),
        (
            {"endpointUrl": "http://kinesis:4567"},
            (
                "the Kinesis endpoint on kinesis would be used without TLS: use https, or pass "
                "insecure=True if the network is trusted"
            ),
        ),
        (
            {"externalId": "a-7"},
            "externalId is for the role of roleArn: set roleArn, or leave externalId out",
        ),
        ({"roleExternalId": "a-7"}, "write 'externalId'"),
        ({"kinesis.stsSessionName": "etl"}, "write 'roleSessionName'"),
        ({"endpointUrl": "ftp://kinesis"}, "endpointUrl must begin with https://"),
        ({"subscribe": "orders"}, "the option 'subscribe' is not known"),
    ],
)
def test_a_mistake_about_kinesis_is_named(options: dict[str, str], sentence: str) -> None:
    assert sentence in refusal(KINESIS | options)


def test_what_is_missing_is_named() -> None:
    assert refusal({"source": "kinesis"}) == (
        "stream is missing: it names the Kinesis stream, or its ARN"
    )
    assert refusal({"source": "kinesis", "stream": "orders"}) == (
        "enhanced fan-out needs a consumer: name one, or pass mode='polling'"
    )
    assert refusal({"source": "kafka", "subscribe": "orders"}) == (
        "kafka.bootstrap.servers is missing: it names the brokers, as host:port"
    )
    assert refusal({"source": "kafka", "kafka.bootstrap.servers": "localhost"}) == (
        "say what to read by exactly one of subscribe, subscribePattern and assign, not by none of "
        "them"
    )
    assert refusal({"source": "pulsar"}) == "source='pulsar' must be kinesis or kafka or shuffle"


def test_options_of_a_source_need_the_source() -> None:
    refuse_without_source({"landing": "/lake", "failondataloss": "false"})
    with pytest.raises(OptionError) as refused:
        refuse_without_source({"landing": "/lake", "stream": "orders", "maxwait": "2"})
    assert str(refused.value) == (
        "maxWait and stream is for a query that lands a source by itself: add the option source, "
        "one of kinesis, kafka, shuffle; or leave it out to read what is landed by another process"
    )


def test_a_share_group_is_refused() -> None:
    assert refusal(KAFKA | {"source": "share"}) == (
        "source='share' cannot be landed: a landing continues after positions, and a share group "
        "has none; read its topics with source='kafka'"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribePattern": "x"}, "not by subscribe and subscribePattern"),
        ({"startingOffsets": "first"}, "startingOffsets='first' must be earliest or latest"),
        ({"startingOffsets": '{"orders": 3}'}, "startingOffsets must be JSON like"),
        (
            {"startingOffsets": '{"orders": {"0": -3}}'},
            "startingOffsets has -3; use an offset, -2 for the earliest or -1 for the latest",
        ),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "startingOffsets has True; use an offset"),
        ({"startingTimestamp": "now"}, "startingTimestamp='now' must be a whole number"),
        ({"startingTimestamp": "9" * 30}, "use milliseconds since 1970, such as 1763800000000"),
        (
            {"startingTimestamp": "1", "startingOffsets": "latest"},
            "say where to begin by one of startingTimestamp and startingOffsets",
        ),
        (
            {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "error"},
            (
                "startingOffsetsByTimestampStrategy='error' is not supported: a partition without "
                "a record of that time or later begins at its end, which is 'latest'"
            ),
        ),
        ({"includeHeaders": "false"}, "the column headers is always there"),
        ({"kafka.request.timeout.ms": "x"}, "request.timeout.ms='x' must be a whole number"),
        ({"kafka.fetch.max.byte": "1"}, "not known; did you mean 'kafka.fetch.max.bytes'?"),
        ({"maxOffsetsPerTrigger": "5"}, "is refused: write 'maxRecordsPerTrigger'"),
        ({"groupIdPrefix": "x"}, "partitions are read without membership of a group"),
        ({"kafka.auto.offset.reset": "x"}, "startingOffsets says where to begin"),
        ({"endingOffsets": "latest"}, "a streaming query has no end; Trigger.AvailableNow"),
        (
            {"kafka.ssl.truststore.location": "store.jks"},
            (
                "kafka.ssl.truststore.location must be a PEM file, declared by "
                "kafka.ssl.truststore.type=PEM"
            ),
        ),
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol='TLS' is not understood"),
        (
            {"kafka.security.protocol": "SASL_SSL"},
            "kafka.security.protocol='SASL_SSL' needs kafka.sasl.username and KAFKA_PASSWORD, or",
        ),
        (
            {"kafka.bootstrap.servers": "broker:9092"},
            (
                "the Kafka broker on broker would be used without TLS: use SASL_SSL or SSL, or "
                "pass insecure=True if the network is trusted"
            ),
        ),
        (
            {"kafka.sasl.username": "reader"},
            "kafka.security.protocol='SASL_SSL' needs kafka.sasl.username and KAFKA_PASSWORD",
        ),
    ],
)
def test_a_mistake_about_kafka_is_named(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], sentence: str
) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    assert sentence in refusal(KAFKA | options)


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.jaas.config",
        "kafka.sasl.password",
        "kafka.ssl.key.password",
        "kafka.ssl.keystore.password",
        "kafka.ssl.keystore.key",
        "kafka.ssl.truststore.password",
        "kafka.sasl.oauthbearer.token.endpoint.url",
    ],
)
def test_a_secret_of_kafka_is_no_option(name: str) -> None:
    sentence = refusal(KAFKA | {name: "canary"})
    assert sentence.startswith(
        f"the option '{name}' is a secret, and Spark shows options in its plans: set KAFKA_PASSWORD"
    )
    assert "canary" not in sentence


@pytest.mark.parametrize(
    "name", ["awsAccessKey", "awsAccessKeyId", "awsSecretKey", "kinesis.awsSecretKey", "password"]
)
def test_a_secret_of_kinesis_is_no_option(name: str) -> None:
    sentence = refusal(KINESIS | {name: "canary"})
    assert sentence == (
        f"the option '{name.lower()}' is a secret, and Spark shows options in its plans: "
        f"credentials come from the environment, the profile or the role of the machine where "
        f"Spark's driver runs, and roleArn names a role to assume"
    )


def test_records_are_decoded_as_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_PASSWORD", "canary")
    typed = {"decode": "json", "schema": "id BIGINT", "columns": "key, timestamp", "into": "order"}
    source = made(KAFKA | typed | {"onBadRecord": "Gap"})
    decode = Json("id BIGINT", columns=["key", "timestamp"], into="order")
    assert source == KafkaSource(
        cluster=LOCAL, topics=["orders"], start="latest", decode=decode, on_bad_record="gap"
    )
    keys = {"keyDecode": "json", "keySchema": "customer INT", "keyInto": "of"}
    source = made(KAFKA | typed | keys | {"columns": "key"})
    key = Json("customer INT", into="of")
    assert source.decode == Json("id BIGINT", columns=["key"], into="order", key=key)  # type: ignore[attr-defined]
    registry = {
        "decode": "avro",
        "schema": '{"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}',
        "schemaRegistryUrl": "https://registry",
        "schemaRegistryUsername": "key",
        "schemaRegistryCaFile": "ca.pem",
        "schemaRegistryCertificateFile": "own.pem",
        "schemaRegistryKeyFile": "own.key",
    }
    source = made(KINESIS | registry)
    assert isinstance(source, KinesisSource)
    assert isinstance(source.decode, Avro)
    found = source.decode.registry
    assert isinstance(found, SchemaRegistry)
    # Executors get a function, which reads their own environment.
    assert callable(found.password)
    assert found.password() == "canary"
    assert found == SchemaRegistry(
        "https://registry",
        username="key",
        password=found.password,
        ca_file="ca.pem",
        certificate_file="own.pem",
        key_file="own.key",
    )


def test_the_newest_schema_of_the_topic_is_read_with() -> None:
    with embedded_registry() as registry:
        registry.register("orders-value", '"long"')
        source = made(KAFKA | {"decode": "avro", "schemaRegistryUrl": registry.url})
    assert isinstance(source, KafkaSource)
    assert source.schema.names == ["topic", "partition", "offset", "value"]


def test_the_columns_of_a_query_are_those_that_are_landed(tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.datasource")
    from fanout.spark.dataframe.data_source import LandingDataSource  # noqa: PLC0415 - as above

    def columns(ddl: str, new_columns: str) -> list[str]:
        typed = {"decode": "json", "schema": ddl, "newColumns": new_columns}
        landed = LandingDataSource(KINESIS | typed | {"landing": str(tmp_path)})
        return landed.schema().names[3:]

    assert columns("id INT, more INT", "ignore") == ["id", "more"]
    with KinesisServer() as server:
        server.create_stream("orders")
        session = aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing")
        source = KinesisSource(
            stream="orders",
            mode="polling",
            decode=Json("id INT"),
            endpoint_url=server.endpoint_url,
            region="us-east-1",
            session=session,
        )
        asyncio.run(_land_nothing(source, str(tmp_path)))
    assert columns("more INT, id INT", "ignore") == ["id"]
    assert columns("more INT, id INT", "add") == ["more", "id"]


@pytest.mark.long
def test_while_the_registry_is_down_a_query_reads_with_the_stored_schema(tmp_path: Path) -> None:
    with embedded_registry() as registry, KinesisServer() as server:
        schema = '{"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}'
        registry.register("orders-value", schema)
        server.create_stream("orders")
        session = aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing")
        decode = Avro(schema, registry=SchemaRegistry(registry.url))
        source = KinesisSource(
            stream="orders",
            mode="polling",
            decode=decode,
            endpoint_url=server.endpoint_url,
            region="us-east-1",
            session=session,
        )
        asyncio.run(_land_nothing(source, str(tmp_path)))
        registry.status = 503
        options = {"decode": "avro", "schemaregistryurl": registry.url, "landing": str(tmp_path)}
        landed = LandedSource.parse(KINESIS | options | {"subject": "orders-value"}, None)
        assert landed is not None
        again = landed.make()
    assert isinstance(again, KinesisSource)
    assert again.decode == decode


async def _land_nothing(source: KinesisSource, location: str) -> None:
    async with fanout.land(source, location, available_now=True) as landing:
        async for _ in landing:
            pass


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"schemaRegistryUrl": "https://r"}, "schemaRegistryUrl is about decode: give both"),
        (
            {"decode": "avro", "schemaRegistryUrl": "https://a:canary@r"},
            (
                "schemaRegistryUrl has a password in it: pass schemaRegistryUsername and "
                "SCHEMA_REGISTRY_PASSWORD"
            ),
        ),
        (
            {"decode": "avro", "schemaRegistryUrl": "https://r", "schemaRegistryUsername": "k"},
            "schemaRegistryUsername has a password: set SCHEMA_REGISTRY_PASSWORD",
        ),
        (
            {"decode": "avro", "subscribe": "a,b", "schemaRegistryUrl": "https://r"},
            (
                "subject is missing: it names the newest schema to read with, such as "
                "'orders-value'; or give schema"
            ),
        ),
        (
            {"schemaRegistryPassword": "canary"},
            (
                "the option 'schemaregistrypassword' is refused: it is a secret, and Spark shows "
                "options in its plans: set SCHEMA_REGISTRY_PASSWORD in the environment where "
                "Spark's driver starts"
            ),
        ),
        ({"onBadRecord": "gap"}, "onBadRecord is about decode: pass decode, or leave it out"),
        ({"keySchema": "id INT"}, "keySchema is about decode: give both"),
        (
            {"decode": "json", "schema": "id INT", "keyDecode": "json"},
            "keyDecode='json' needs keySchema, such as 'id BIGINT, name STRING'",
        ),
    ],
)
def test_what_is_wrong_with_a_decoder_is_in_words_of_options(
    options: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCHEMA_REGISTRY_PASSWORD", raising=False)
    assert refusal(KAFKA | options) == sentence


def test_no_refused_name_is_an_option() -> None:
    known = {name.lower() for names in SOURCE_OPTIONS.values() for name in names}
    assert not known & {*KAFKA_REFUSED, *DECODE_REFUSED}


def test_every_option_of_a_source_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is refused if it is empty, so none is ignored."""
    monkeypatch.setenv("KAFKA_PASSWORD", "canary")
    given = {
        "kinesis": KINESIS,
        "kafka": KAFKA,
        "shuffle": KAFKA | {"source": "shuffle"},
    }
    stores = {"kafka.ssl.truststore.type": "location", "kafka.ssl.keystore.type": "location"}
    for kind, names in SOURCE_OPTIONS.items():
        for name in names:
            options = given[kind] | {name: " "}
            if name in stores:
                options |= {re.sub("type$", "location", name): "file"}
            if name in {"subscribePattern", "assign"}:
                options.pop("subscribe")
            assert refusal(options) == f"{name} is empty; give it a value, or leave it out"


def test_the_page_has_every_option() -> None:
    several = "kinesis, kafka|kafka, shuffle|kinesis, shuffle"
    row = rf"^\| `([\w.]+)` \| (all|kinesis|kafka|shuffle|{several}) \|"
    kinds = {"all": "kinesis, kafka, shuffle"}
    rows = re.findall(row, PAGE, re.MULTILINE)
    documented = {
        kind: [name for name, of in rows if kind in kinds.get(of, of)] for kind in SOURCE_OPTIONS
    }
    assert {kind: sorted(names) for kind, names in documented.items()} == {
        kind: sorted((*names, *LANDING_OPTIONS)) for kind, names in SOURCE_OPTIONS.items()
    }


def test_the_examples_of_the_page_have_options_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "canary")
    examples = [dict(re.findall(r'\.option\("(.+)", "(.+)"\)', block)) for block in BLOCKS]
    landed = [LandedSource.parse(one, None) for one in examples if "source" in one]
    assert [type(one.make()) for one in landed if one] == [KinesisSource, KafkaSource]


def test_json_may_be_anything() -> None:
    for text in ("[]", "1", '"orders"', "{", json.dumps({"orders": "0"})):
        options = {name: value for name, value in KAFKA.items() if name != "subscribe"}
        assert 'JSON like {"orders": [0, 1]}' in refusal(options | {"assign": text})
