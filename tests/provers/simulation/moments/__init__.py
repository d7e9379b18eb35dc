"""The rare coincidences that a campaign has to meet, and what observes them."""
