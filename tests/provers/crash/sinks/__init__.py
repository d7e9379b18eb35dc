"""The sinks that a campaign's job writes to: how it does, and what they hold."""
