"""Landers under simulation: a coordinator and several landers, in virtual time.

`LanderTask`, `Lander` and `Coordinator` are the library's own. The network between them, the
service, the storage of segments and Spark are not: connections are slow, cut and broken, processes
and drivers die, and tasks that Spark takes for ended go on.
"""
