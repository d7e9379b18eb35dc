"""Records that Kafka's own Java producer has written, which is the one that most people use."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fanout.testing.kafka.jars import kafka_jars
from tests.support.kafka.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.long]

VALUES = [b"%d" % number * 50 for number in range(500)]


@pytest.fixture(scope="module")
def loader(spark: SparkSession) -> Iterator[Any]:
    """Kafka's classes in Spark's JVM, apart from those of Spark."""
    jvm: Any = spark._jvm
    jars = sorted((kafka_jars() / "libs").glob("*.jar"))
    gateway: Any = spark.sparkContext._gateway
    urls = gateway.new_array(jvm.java.net.URL, len(jars))
    for number, jar in enumerate(jars):
        urls[number] = jvm.java.io.File(str(jar)).toURI().toURL()
    made = jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getPlatformClassLoader())
    yield made
    made.close()


@contextmanager
def producers(spark: SparkSession, loader: Any) -> Iterator[Any]:
    """Find the classes of Kafka's producers by their names, in this thread."""
    jvm: Any = spark._jvm
    thread = jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(loader)
    try:
        yield jvm.org.apache.kafka.clients.producer
    finally:
        thread.setContextClassLoader(before)


def write(spark: SparkSession, loader: Any, topic: Topic, codec: str) -> None:
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    for name, setting in {
        "bootstrap.servers": topic.broker.bootstrap_servers,
        "compression.type": codec,
        "key.serializer": serializer,
        "value.serializer": serializer,
        "linger.ms": "100",
    }.items():
        settings.setProperty(name, setting)
    with producers(spark, loader) as java:
        producer = java.KafkaProducer(settings)
        for value in VALUES:
            record = java.ProducerRecord(topic.name, None, value[:1], value)
            record.headers().add("codec", codec.encode())
            producer.send(record)
        producer.close()


@pytest.mark.fault("Records come in every codec")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_of_the_java_producer_is_read(
    spark: SparkSession, loader: Any, kafka_broker: KafkaBroker, codec: str
) -> None:
    topic = Topic(kafka_broker)
    write(spark, loader, topic, codec)
    batches = asyncio.run(topic.read()).batches
    rows = [row for batch in batches for row in batch.records.to_pylist()]
    assert [(row["key"], row["value"]) for row in rows] == [(value[:1], value) for value in VALUES]
    assert [row["offset"] for row in rows] == list(range(len(VALUES)))
    assert {tuple(row["headers"][0].items()) for row in rows} == {
        (("key", "codec"), ("value", codec.encode()))
    }
