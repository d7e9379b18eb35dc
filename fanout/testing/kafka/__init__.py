"""The parts of the real Kafka broker for tests; what users call is `fanout.testing.kafka_broker`.

`jars` has Kafka's own jars in a cache of the user, `settings` is the broker's configuration,
`keeper` runs it in a process that outlives nobody, and `topics` asks it for topics.
"""
