"""What the pages count: a phrase of each count, and what it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.provers.planted.hunt import SEEDS
from tests.provers.planted.kafka_bugs import KAFKA_BUGS
from tests.provers.planted.kinesis_bugs import KINESIS_BUGS
from tests.provers.planted.lander_bugs import LANDER_BUGS
from tests.provers.planted.shuffle_bugs import SHUFFLE_BUGS
from tests.provers.planted.spark_bugs import SPARK_BUGS
from tests.provers.simulation.kafka.faults import KafkaFaultKind
from tests.provers.simulation.kafka.moments import KafkaSometimes
from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.tests.simulation.campaign import test_kafka_seeds, test_seeds
from tests.provers.tests.simulation.tables import test_simulated_tables as tables

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("COUNTS",)

COUNTS: Final[Mapping[str, Mapping[str, int]]] = {
    "reliability.md": {
        "There are {} kinds of faults:": len(KinesisFaultKind),
        "`make prove` also plants {} bugs": len(KINESIS_BUGS),
        "found within {} seeds. The campaign": SEEDS,
        "counts {} rare coincidences": len(KinesisSometimes),
        "there are {} kinds of faults of the cluster": len(KafkaFaultKind),
        "Here {} bugs are planted": len(KAFKA_BUGS),
        "{} coincidences are required": len(KafkaSometimes),
        "{} bugs are planted for these": len(SHUFFLE_BUGS),
        "found within {} seeds that read a shuffle": SEEDS,
        "{} bugs are planted on the Spark side": len(SPARK_BUGS),
        "{} bugs are planted in landers": len(LANDER_BUGS),
        "{} bugs are planted in tables": len(tables.BUGS),
        "found within {} seeds of tables": tables.ENOUGH,
        "`make prove` runs {} of them": tables.SEEDS,
        "`make prove` runs {} fixed seeds over Kinesis": len(test_seeds.SEEDS),
        "each time, and {} over Kafka": len(test_kafka_seeds.SEEDS),
    },
    "promises.md": {
        "injects {} kinds of faults": len(KinesisFaultKind),
        "for Kinesis, and {} of the cluster for Kafka": len(KafkaFaultKind),
    },
    "README.md": {"{} kinds of faults in a simulator": len(KinesisFaultKind)},
}
