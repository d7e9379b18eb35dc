"""Programs that search for failures: a simulator in virtual time, and a crash campaign."""
