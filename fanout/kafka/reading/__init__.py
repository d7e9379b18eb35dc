"""Reading partitions: fetch, decode into Arrow columns, offsets, and losses."""
