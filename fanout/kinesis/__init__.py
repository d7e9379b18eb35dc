"""Amazon Kinesis Data Streams through enhanced fan-out, or by polling.

Needs the extra `fanout[kinesis]`.
"""

from fanout.errors import SetupError

try:
    from fanout.kinesis.doctor.diagnose import diagnose
    from fanout.kinesis.doctor.findings import Finding
    from fanout.kinesis.iam import iam_policy
    from fanout.kinesis.source import KinesisSource
except ModuleNotFoundError as error:
    if error.name is not None and error.name.startswith("fanout"):
        raise
    raise SetupError(
        f"{error.name} is not installed; install the extra: pip install 'fanout[kinesis]'"
    ) from error

__all__ = ("Finding", "KinesisSource", "diagnose", "iam_policy")
