"""The parts of the real Kafka broker for tests; what users call is `fanout.testing.kafka.broker`.

`jars` has Kafka's own jars in a cache of the user, with an `archive` of their classes; `settings`
is the broker's configuration; `kept` runs it below a `keeper`, a process that leaves nothing of it
when the caller is gone; and `topics` asks it for topics.
"""
