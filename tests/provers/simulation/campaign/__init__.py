"""Many simulated runs: on all cores, summed, shown, replayed and shrunk."""
