"""Share groups of Kafka (KIP-932): records handed out one by one, to any number of members.

Needs the extra `fanout[share]`. The client that it uses says of its share consumer that it is in
preview.
"""

from fanout.errors import SetupError

try:
    from fanout.kafka.share.source import KafkaShareSource
except ModuleNotFoundError as error:
    if error.name is not None and error.name.startswith("fanout"):
        raise
    raise SetupError(
        f"{error.name} is not installed; install the extras: pip install 'fanout[kafka,share]'"
    ) from error

__all__ = ("KafkaShareSource",)
