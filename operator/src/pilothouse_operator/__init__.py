"""The control loop on Kubernetes: watches the four kinds and pods, decides with `pilothouse_control`, writes.

A change goes through the folders in this order; import-linter keeps that each imports only those below it:
- `process`: the host of everything else, election, probes, sweep;
- `reconcile`: one reconciler a kind, gathers and acts;
- `status`: what people see of a run;
- `runs`: what is the matter with a run and what to do about it, pure;
- `workloads` and `supervision`: plans and pods; records, counters and judges;
- `watching`: the picture of the cluster, fed by watches, and the work queue.
Beside them: `settings`, `conditions` and `metrics`, which several folders share.

Does not belong here: anything that knows how a run advances (`pilothouse_engine`), and decisions that the command
line needs too (`pilothouse_control`).
"""
