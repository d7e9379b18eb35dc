"""Read partitions: fetch, decode into Arrow columns, look offsets up, and detect data loss."""
