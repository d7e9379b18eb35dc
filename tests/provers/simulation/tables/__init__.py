"""A landing and a table that names its files, in virtual time; all that happens is in `run`."""
