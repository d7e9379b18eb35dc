"""The engine behind `fanout demo` and the crash campaign: jobs are killed, and outputs compared."""
