"""Exact micro-batches of a fan-out, handed to Spark.

Needs the extra `fanout[spark]`.
"""

from fanout.errors import SetupError

try:
    from fanout.spark.ledger import LedgerBatch
    from fanout.spark.progress import QueryProgress
    from fanout.spark.query import FanOutQuery
    from fanout.spark.starting import foreach_batch
except ModuleNotFoundError as error:
    if error.name is not None and error.name.startswith("fanout"):
        raise
    raise SetupError(
        f"{error.name} is not installed; install the extra: pip install 'fanout[spark]'"
    ) from error

__all__ = ("FanOutQuery", "LedgerBatch", "QueryProgress", "foreach_batch")
