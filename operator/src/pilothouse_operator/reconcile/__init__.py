"""Reconcilers, one a kind: each looks at one key, decides with values, writes, and says when to look again.

A reconciler raises only faults (`ApiError`, a bug): the key then comes again after its backoff. `desk` is what all of
them work with. They gather and act; what they decide is in `runs`, `status`, `workloads`, `supervision` and
`pilothouse_control`. May import everything but `process`.
"""
