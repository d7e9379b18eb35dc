"""A landing's log in the form in which other engines read it."""
