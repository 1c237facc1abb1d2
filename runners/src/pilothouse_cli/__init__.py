"""`pilothouse`, the command line, and the host of local runs.

`main` is the program, `program` its commands with their options; `commands` are the verbs: each asks, acts, speaks.
Under them, ignorant of each other: `local` (runs of this machine, and their host), `cluster` (runs of a namespace) and
`views` (what a terminal shows). Under these: `authoring` (manifests and what else an author needs) and `runs` (what
holds for runs wherever they are), then `terminal` (the two streams) and `exits` (exit codes, errors). A command imports
what it needs when it is called, so that `--help` is quick.
"""
