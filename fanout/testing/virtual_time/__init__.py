"""An event loop in virtual time: hours pass in milliseconds, and each run is the same."""
