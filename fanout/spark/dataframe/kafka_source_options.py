"""Make a Kafka source from string options, by the names that Spark's own Kafka source has."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from fanout._secret_variables import SECRET_VARIABLES, secrets_of_environment
from fanout.errors import OptionError
from fanout.kafka.client_properties import read_client_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.core.source import Source
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.reading.kafka_source import KafkaSource
    from fanout.spark.dataframe.options import StringOptions

_PREFIX: Final = "kafka."
# What encrypts and authenticates, by Kafka's names, with the keyword of `Security` for each.
_SECURITY: Final = {
    "kafka.security.protocol": "protocol",
    "kafka.sasl.mechanism": "mechanism",
    "kafka.sasl.username": "username",
    "kafka.ssl.truststore.location": "ca_file",
    "kafka.ssl.keystore.location": "certificate_file",
    "kafka.ssl.key.location": "key_file",
}
_STORE_TYPES: Final = {
    "kafka.ssl.truststore.location": "kafka.ssl.truststore.type",
    "kafka.ssl.keystore.location": "kafka.ssl.keystore.type",
}
_CONSUMER: Final = (
    "kafka.fetch.min.bytes",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.max.partition.fetch.bytes",
    "kafka.request.timeout.ms",
    "kafka.connections.max.idle.ms",
)
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")

KAFKA_OPTIONS: Final = (
    "kafka.bootstrap.servers",
    *_SELECTIONS,
    *_STARTS,
    "startingOffsetsByTimestampStrategy",
    "includeHeaders",
    "kafka.group.id",
    "kafka.client.id",
    "kafka.client.rack",
    "kafka.isolation.level",
    *_SECURITY,
    *_STORE_TYPES.values(),
    *_CONSUMER,
)
SHUFFLE_OPTIONS: Final = ("partitionCount", "onBadFrame", "producerTimeout", "onSilentProducer")

KAFKA_WORDS: Final = {
    **{keyword: name for name, keyword in _SECURITY.items()},
    **SECRET_VARIABLES,
    "servers": "kafka.bootstrap.servers",
    "topics": "subscribe",
    "pattern": "subscribePattern",
    "partitions": "assign",
    "start": "startingOffsets",
    "group_id": "kafka.group.id",
    "client_id": "kafka.client.id",
    "client_rack": "kafka.client.rack",
    "isolation_level": "kafka.isolation.level",
    "max_bytes_in_flight": "maxBytesInFlight",
    "partition_count": "partitionCount",
    "on_bad_frame": "onBadFrame",
    "producer_timeout": "producerTimeout",
    "on_silent_producer": "onSilentProducer",
}
"""What a user of these options writes for the keywords of `KafkaSource` and `Security`."""

KAFKA_SECRETS_GO: Final = (
    f"set {', '.join(SECRET_VARIABLES.values())} in the environment where Spark's driver "
    "starts, and give the user as kafka.sasl.username; in a classic session, "
    "fanout.spark.read_stream takes Cluster(security=...) with a function that returns them"
)

_NO_MEMBERS: Final = "partitions are read without membership of a group, so nothing is rebalanced"
_BATCH: Final = (
    "a streaming query has no end; Trigger.AvailableNow ends it when all records of now are read"
)
_RETRIES: Final = "retries need no option: they go on, and wait longer each time"
_NO_CONSUMER: Final = "there is no Java consumer here"
_COMMITS: Final = "offsets are committed when records are landed, if there is a kafka.group.id"
_VALUES: Final = "keys and values are columns of bytes; cast them in the DataFrame"

KAFKA_REFUSED: Final[Mapping[str, str]] = {
    "endingoffsets": _BATCH,
    "endingoffsetsbytimestamp": _BATCH,
    "endingtimestamp": _BATCH,
    "fetchoffset.numretries": _RETRIES,
    "fetchoffset.retryintervalms": _RETRIES,
    "groupidprefix": f"{_NO_MEMBERS}; kafka.group.id names a group that shows the lag",
    "kafkaconsumer.polltimeoutms": f"{_NO_CONSUMER}; kafka.request.timeout.ms bounds a request",
    "maxoffsetspertrigger": "write 'maxRecordsPerTrigger'",
    "maxtriggerdelay": "the trigger of the query says how often it runs",
    "minoffsetspertrigger": "the trigger of the query says how often it runs",
    "minpartitions": "a batch has a partition for each row group of its files",
    "maxrecordsperpartition": "a batch has a partition for each row group of its files",
    "kafka.auto.offset.reset": "startingOffsets says where to begin, and failOnDataLoss what to do "
    "when records are gone",
    "kafka.auto.commit.interval.ms": _COMMITS,
    "kafka.enable.auto.commit": _COMMITS,
    "kafka.key.deserializer": _VALUES,
    "kafka.value.deserializer": _VALUES,
    "kafka.interceptor.classes": f"{_NO_CONSUMER}, so there are no Java classes",
    "kafka.group.instance.id": _NO_MEMBERS,
    "kafka.group.protocol": _NO_MEMBERS,
    "kafka.heartbeat.interval.ms": _NO_MEMBERS,
    "kafka.max.poll.interval.ms": _NO_MEMBERS,
    "kafka.partition.assignment.strategy": _NO_MEMBERS,
    "kafka.session.timeout.ms": _NO_MEMBERS,
    "kafka.max.poll.records": "maxBytesInFlight bounds what is read ahead",
    "kafka.metadata.max.age.ms": "topics are listed each minute, and leaders when they move",
    "kafka.retries": _RETRIES,
    "kafka.retry.backoff.ms": _RETRIES,
    "kafka.reconnect.backoff.ms": _RETRIES,
    "kafka.check.crcs": "checksums are always checked",
    "kafka.ssl.endpoint.identification.algorithm": "the names of brokers are always checked",
    "kafka.sasl.client.callback.handler.class": f"{_NO_CONSUMER}, so there are no Java classes; "
    "kafka.sasl.mechanism may be AWS_MSK_IAM without one",
    "kafka.sasl.kerberos.service.name": "Kerberos is not supported; SCRAM, PLAIN and OAUTHBEARER "
    "are",
}
"""Why names of Spark's Kafka source and of Kafka's consumer are refused, in lower case."""

_EARLIEST_OFFSET: Final = -2
_LATEST_OFFSET: Final = -1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARTITION_JSON: Final = '{"orders": {"0": 23, "1": -2}}'


def kafka_source(given: StringOptions, fields: dict[str, Any]) -> KafkaSource:
    """Return the source that options describe; `fields` are keywords of it that are known already.

    Raises:
        OptionError: An option is missing or malformed, or two contradict each other. It may name
            keywords of Python; see `KAFKA_WORDS`.
    """
    from fanout.kafka.reading.kafka_source import KafkaSource  # noqa: PLC0415 - an optional extra

    if given.flag("includeHeaders") is False:
        raise OptionError(
            "includeHeaders=false is not needed: the column headers is always there, and a query "
            "that does not use it may drop it"
        )
    for name, keyword in (("kafka.group.id", "group_id"), ("kafka.client.rack", "client_rack")):
        if (value := given.text(name)) is not None:
            fields[keyword] = value
    if level := given.word("kafka.isolation.level", "read_committed", "read_uncommitted"):
        fields["isolation_level"] = level
    consumer = {
        name.removeprefix(_PREFIX): value
        for name in _CONSUMER
        if (value := given.text(name)) is not None
    }
    return KafkaSource(
        cluster=_cluster(given),
        start=_start(given),
        consumer_options=consumer,
        **_selection(given),
        **fields,
    )


def shuffle_source(given: StringOptions, fields: dict[str, Any]) -> Source:
    """Return the source of a shuffle's topics that options describe; see `kafka_source`."""
    from fanout.kafka.shuffle.source import ShuffleSource  # noqa: PLC0415 - an optional extra

    own: dict[str, Any] = {
        "on_bad_frame": given.word("onBadFrame", "fail", "gap"),
        "on_silent_producer": given.word("onSilentProducer", "leave_out", "fail"),
        "partition_count": given.number("partitionCount"),
        "producer_timeout": given.seconds("producerTimeout"),
    }
    kafka = kafka_source(given, fields)
    return ShuffleSource(kafka, **{name: value for name, value in own.items() if value is not None})


def _selection(given: StringOptions) -> dict[str, Any]:
    chosen = [name for name in _SELECTIONS if given.text(name) is not None]
    if len(chosen) != 1:
        raise OptionError(
            f"say what to read by exactly one of subscribe, subscribePattern and assign, not by "
            f"{' and '.join(chosen) or 'none of them'}"
        )
    if topics := given.text("subscribe"):
        return {"topics": [topic.strip() for topic in topics.split(",")]}
    if pattern := given.text("subscribePattern"):
        return {"pattern": pattern}
    like = '{"orders": [0, 1]}'
    assigned = given.json_object("assign", like) or {}
    for numbers in assigned.values():
        if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
            raise OptionError(f"assign must be JSON like {like}")
    return {"partitions": [f"{topic}-{n}" for topic in assigned for n in assigned[topic]]}


def _start(given: StringOptions) -> Any:
    chosen = [name for name in _STARTS if given.text(name) is not None]
    if len(chosen) > 1:
        raise OptionError(f"say where to begin by one of {' and '.join(chosen)}")
    if given.word("startingOffsetsByTimestampStrategy", "error", "latest") == "error":
        raise OptionError(
            "startingOffsetsByTimestampStrategy='error' is not supported: a partition without a "
            "record of that time or later begins at its end, which is 'latest'"
        )
    if chosen == ["startingTimestamp"]:
        return _moment(given.number("startingTimestamp"), "startingTimestamp")
    if chosen == ["startingOffsetsByTimestamp"]:
        return _of_partitions(given, chosen[0], _moment)
    text = given.text("startingOffsets") or "latest"
    if not text.lstrip().startswith("{"):
        return given.word("startingOffsets", "earliest", "latest") or text
    return _of_partitions(given, "startingOffsets", _offset)


def _of_partitions(
    given: StringOptions, name: str, start: Callable[[object, str], object]
) -> dict[str, object]:
    found = given.json_object(name, _PARTITION_JSON) or {}
    if not all(isinstance(numbers, dict) for numbers in found.values()):
        raise OptionError(f"{name} must be JSON like {_PARTITION_JSON}")
    return {
        f"{topic}-{number}": start(value, name)
        for topic, numbers in found.items()
        for number, value in numbers.items()
    }


def _offset(value: object, name: str) -> object:
    if not isinstance(value, int) or not _is_number(value, _EARLIEST_OFFSET):
        raise OptionError(
            f"{name} has {value!r}; use an offset, -2 for the earliest or -1 for the latest"
        )
    return {_EARLIEST_OFFSET: "earliest", _LATEST_OFFSET: "latest"}.get(value, value)


def _moment(value: object, name: str) -> datetime:
    try:
        if isinstance(value, int) and _is_number(value):
            return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        pass
    raise OptionError(f"{name} has {value!r}; use milliseconds since 1970, such as 1763800000000")


def _is_number(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _cluster(given: StringOptions) -> Cluster:
    """Return the cluster, with the secrets of this process's environment."""
    from fanout.kafka.cluster import Cluster  # noqa: PLC0415 - an optional extra

    servers = given.required("kafka.bootstrap.servers", "it names the brokers, as host:port")
    for location, kind in _STORE_TYPES.items():
        if given.text(location) is not None and (given.text(kind) or "JKS").upper() != "PEM":
            raise OptionError(
                f"{location} must be a PEM file, declared by {kind}=PEM: Java's key stores cannot "
                f"be read; `keytool` and `openssl pkcs12` convert them to PEM"
            )
    settings = {
        keyword: value
        for name, keyword in _SECURITY.items()
        if (value := given.text(name)) is not None
    }
    properties = read_client_properties(
        None,
        servers=servers,
        insecure=given.flag("insecure") or False,
        options=settings,
        secrets=secrets_of_environment(),
    )
    client_id = given.text("kafka.client.id")
    cluster = Cluster(servers, security=properties.security)
    return cluster if client_id is None else replace(cluster, client_id=client_id)
