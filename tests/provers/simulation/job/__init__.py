"""A user's job in a simulation: its process, how it reads, and where it keeps positions."""
