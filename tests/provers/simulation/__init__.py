"""A simulator: the readers and the Spark driver run in virtual time, on services that fail by seed.

Hours pass in milliseconds, and a seed gives the same run each time. `plans` draws what happens in a
run, and `run` runs it. `kinesis` and `kafka` each hold a plan, the faults, a model of the service,
and an oracle that knows what a reader must get; `job` is the job that reads them. `spark` does the
same for the Spark side: disk, power loss, lock and two drivers. `moments` are the coincidences that
a campaign has to meet, and `campaign` runs many seeds. Begin to read at `run`.
"""
