"""A shuffle in a simulated topic: its producers, and what their watermarks promise a reader."""
