"""`pilothouse`, the command line, and the host of local runs.

Three layers, each ignorant of the next: `commands` parse and speak, `Runs` (local or cluster) reads and patches,
`tables` and `live_view` turn objects into what a terminal shows. A command imports what it needs when it is called, so
that `--help` is quick.
"""
