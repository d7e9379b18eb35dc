"""Track the ids of topics: a topic that is deleted and created again gets another id."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from fanout.kafka.protocol.error_codes import error_of
from fanout.kafka.protocol.messages.flexible import ANY_TOPIC_ID
from fanout.kafka.protocol.messages.metadata import TopicIdsRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kafka.protocol.connections import Connections


@final
class TopicIds:
    """Track the ids of topics, and find topics that were deleted and created again."""

    def __init__(self, connections: Connections, topics: Sequence[str]) -> None:
        self._connections = connections
        self._topics = topics
        self._known: dict[str, str] = {}
        self._missing: set[str] = set()

    @property
    def known(self) -> Mapping[str, str]:
        """The latest known id of each topic."""
        return self._known

    @property
    def missing(self) -> set[str]:
        """The topics that did not exist at the last refresh."""
        return self._missing

    async def refresh(self) -> set[str]:
        """Request the ids, and return the topics that were deleted and created again."""
        response = await self._connections.send_to_any(TopicIdsRequest(self._topics))
        replaced, self._missing = set[str](), set[str]()
        for code, topic, topic_id, *_ in response.topics:
            match error_of(code, topic):
                case UnknownTopicOrPartitionError():
                    self._missing.add(topic)
                case KafkaError() as error if not error.retriable:
                    raise error
                case _ if topic_id != ANY_TOPIC_ID:
                    if self._known.setdefault(topic, topic_id.hex()) != topic_id.hex():
                        replaced.add(topic)
                    self._known[topic] = topic_id.hex()
                case _:
                    pass
        return replaced
