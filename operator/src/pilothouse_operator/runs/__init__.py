"""Decisions about a run. All of it is pure: values in, values out, no client and no clock.

`view` (what is known) goes through `classification` to a `situation`, and that to a plan (`attempts`) and to the time
of the next look (`looks`). `children` and `directives` are what holds an end or a landing up.
May import `supervision.record`, the pure modules of `workloads`, and `conditions`.
"""
