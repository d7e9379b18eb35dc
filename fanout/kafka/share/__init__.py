"""Share groups of Kafka (KIP-932): records are acquired one by one, by any number of members."""
