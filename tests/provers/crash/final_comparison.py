"""Compare at the end, when the job has ended: what it has written, read once more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from msgspec import structs

from fanout.testing.trials.oracle import OutputOracle, OutputVerdict
from tests.provers.crash.looks import judge
from tests.provers.crash.moments import SUFFIX, input_of, output_of
from tests.provers.crash.newest import compare_newest
from tests.provers.crash.plan import CampaignFailedError
from tests.provers.crash.reader import end_offsets, read_again

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.testing.trials.records import RecordProducer
    from tests.provers.crash.moments import Pipeline
    from tests.provers.crash.sinks.destination import Destination

__all__ = ("PARTITIONS", "Comparison", "compare", "compare_destination", "worse_of")

PARTITIONS: Final = 4

# The broker writes the end of a transaction to its partitions after it has answered.
_TO_END = 10.0
_LOOK = 0.05


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of the last check.

    Args:
        verdicts: What each pipeline came to: the worse of what was read during the campaign and at
            its end.
        open_transactions: Partitions of outputs that a transaction still holds up.
    """

    verdicts: dict[Pipeline, OutputVerdict]
    open_transactions: int


def compare(
    producers: Mapping[Pipeline, RecordProducer],
    oracles: Mapping[Pipeline, OutputOracle],
    bootstrap_servers: str,
) -> Comparison:
    """Compare each output with its input; it blocks.

    Args:
        producers: What was produced.
        oracles: What was read while the job ran.
        bootstrap_servers: Where the broker is.

    Raises:
        CampaignFailedError: If an input is not what was produced, so that nothing follows from the
            output, or a topic cannot be read.
    """
    for pipeline, producer in producers.items():
        if not pipeline.of_kinesis:
            _check_input(pipeline, producer.total, bootstrap_servers)
    verdicts = {}
    held_up = 0
    for pipeline, oracle in oracles.items():
        topic = output_of(pipeline)
        held_up += _count_open(bootstrap_servers, topic)
        again = OutputOracle(pipeline, SUFFIX)
        read_again(bootstrap_servers, topic, again, PARTITIONS)
        produced = producers[pipeline].total
        verdicts[pipeline] = worse_of(oracle.verdict(produced), again.verdict(produced))
    return Comparison(verdicts, held_up)


def compare_destination(
    producers: Mapping[Pipeline, RecordProducer], destination: Destination
) -> Comparison:
    """Compare what a destination holds with the input of the one pipeline; it blocks.

    Args:
        producers: What was produced.
        destination: What the job has written to.
    """
    [(pipeline, producer)] = producers.items()
    verdict = judge(destination, pipeline).verdict(producer.total)
    newest = destination.newest()
    if newest is not None:
        verdict = worse_of(verdict, compare_newest(pipeline, newest, producer.newest))
    return Comparison({pipeline: structs.replace(verdict, repeated=destination.repeated)}, 0)


def worse_of(one: OutputVerdict, other: OutputVerdict) -> OutputVerdict:
    """Return the larger of each count of two verdicts."""
    counts = structs.asdict(other)
    return OutputVerdict(
        **{name: max(count, counts[name]) for name, count in structs.asdict(one).items()}
    )


def _check_input(pipeline: Pipeline, produced: int, bootstrap_servers: str) -> None:
    written = OutputOracle(pipeline)
    read_again(bootstrap_servers, input_of(pipeline), written, PARTITIONS)
    verdict = written.verdict(produced)
    if not verdict.holds:
        raise CampaignFailedError(f"the input itself is not what was produced: {verdict}")


def _count_open(bootstrap_servers: str, topic: str) -> int:
    deadline = time.monotonic() + _TO_END
    while True:
        ends = end_offsets(bootstrap_servers, topic, PARTITIONS)
        still_open = sum(committed < end for committed, end in ends)
        if not still_open or time.monotonic() > deadline:
            return still_open
        time.sleep(_LOOK)
