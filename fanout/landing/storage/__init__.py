"""Where a log and its segments are: a directory, or a bucket of an object store."""
