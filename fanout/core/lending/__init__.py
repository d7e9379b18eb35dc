"""Records that a service lends to members of a stream: what share groups and queues have alike."""
