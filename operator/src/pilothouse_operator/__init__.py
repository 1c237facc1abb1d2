"""The control loop on Kubernetes: watches the four kinds and pods, decides with `pilothouse_control`, writes.

Belongs here: informer, queue, reconcilers, status, pods, the Lease, the one client of the API server.
Does not belong here: anything that knows how a run advances (`pilothouse_engine`), and decisions that the command
line needs too (`pilothouse_control`).
"""
