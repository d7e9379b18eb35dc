"""Run the real Kafka broker for tests; users start it as `fanout.testing.KafkaBroker`.

`jars` downloads Kafka into a cache of the user, and `archive` prepares its classes for a quick
start. `settings` holds the broker's configuration, `server_process` runs it below `keeper`, a
process that leaves nothing behind when the caller ends, and `topics` creates and grows topics.
"""

from fanout._exports import naming_extras, require

with naming_extras("a broker for tests", extra="testing"):
    require("confluent_kafka")
