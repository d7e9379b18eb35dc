"""Bugs planted into the library, and the search that has to find them."""
