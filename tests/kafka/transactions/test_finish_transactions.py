"""A local checkpoint is opened, read and changed where Spark is not installed."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from fanout.kafka.transactions.commit_token import CommitToken, Incarnation
from fanout.landing.claims import claim_stopped
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.sinks.kafka.stored_tokens import SinkState, StoredTokens

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOKEN = CommitToken(
    transactional_id="fanout-query-kafka",
    incarnation=Incarnation(7, 3),
    marker_group="fanout-query-kafka-marker",
    batch_id=4,
    partitions={"out": (0, 2)},
    created_at=NOW,
    expires_at=NOW,
)

WITHOUT_SPARK = """
import importlib, pkgutil, sys
from pathlib import Path

sys.modules["pyspark"] = sys.modules["py4j"] = None

import fanout.cli.transactions, fanout.landing
from fanout.kafka.transactions.outcome import TransactionStatus
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.storage.local_storage import LocalStorage
from fanout.landing.claims import is_claimed
from fanout.landing.claims import claim_stopped
from fanout.spark.sinks.kafka import finish_transactions as finishing

for module in pkgutil.walk_packages(fanout.landing.__path__, "fanout.landing."):
    importlib.import_module(module.name)
storage = LocalStorage(Path(sys.argv[1]))
assert not is_claimed(storage)
(stored,) = finishing.stored_tokens(storage)
status = TransactionStatus(
    token=stored.token, recorded=True, description=None, marked=4, pending=False
)
transaction = finishing.SinkTransaction(stored.sink, status)
plan = finishing.plan_finish(transaction, finishing.FinishAction.COMMIT, force=False)
with claim_stopped(storage, "a test") as ownership:
    assert BatchLedger(storage, ownership).newest is None
    result = finishing.FinishResult(transaction, plan, committed=True)
    finishing.record_result(storage, ownership, result)
print(stored.sink, stored.token.batch_id, plan.reason)
"""


@pytest.mark.long
def test_a_checkpoint_is_finished_without_spark(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with claim_stopped(storage, "a test") as ownership:
        SinkState(storage, ownership, "kafka").record(TOKEN)
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("kafka 4 it was committed before\n", "")
    assert StoredTokens(storage, "kafka").is_committed(4)
