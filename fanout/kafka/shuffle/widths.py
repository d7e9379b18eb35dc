"""How many partitions the topics of shuffles have: keys are distributed over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fanout.kafka.shuffle.rows import check_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.transport import Transport

__all__ = ("Widths",)


@final
class Widths:
    """Check that topics have as many partitions as was said; with another number keys would move.

    Args:
        transport: The calls.
        expected: How many partitions the user expects of each topic; None for any number.
    """

    def __init__(self, transport: Transport, expected: int | None) -> None:
        self._transport = transport
        self._expected = expected
        self._found: dict[str, int] = {}
        self._announced: dict[str, int] = {}

    def compare(self, found: Mapping[str, int]) -> None:
        """Compare the numbers of partitions that topics have with those that were said.

        Raises:
            ServiceError: If a topic has another number.
        """
        for topic, count in found.items():
            said = {
                "partition_count": self._expected,
                "what its writers announce": self._announced.get(topic),
            }
            for where, number in said.items():
                check_count(topic, count, number, by=where)
        self._found.update(found)

    async def announce(self, topic: str, number: int) -> None:
        """Compare the number of partitions that producers announce with that which there is.

        Raises:
            KafkaError: If the cluster cannot be asked.
            ServiceError: If the topic has another number.
        """
        self._announced[topic] = number
        if self._found.get(topic) == number:
            return
        match (await self._transport.describe([topic]))[topic]:
            case Exception() as error:
                raise error
            case numbers:
                self.compare({topic: len(numbers)})
