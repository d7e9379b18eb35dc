"""What goes wrong in a simulation: the catalogue, how plans draw from it, and when it strikes."""
