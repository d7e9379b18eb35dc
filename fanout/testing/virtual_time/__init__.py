"""An asyncio event loop in virtual time: hours pass in milliseconds, and every run is the same.

`simulate` runs a coroutine on a `SimLoop`, whose clock moves only when every task waits. A schedule
chooses among the steps that are ready at one moment, a `Trace` notes them, and `sweep` cancels a
scenario at each of its steps in turn.
"""
