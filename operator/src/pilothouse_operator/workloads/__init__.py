"""What a run has in the cluster: its plan's ConfigMap and one bare pod an attempt, made and read.

Pure: `manifests` (what is created), `pods` (what a pod's object says), `failures` and `start_problems` (why an attempt
ended or does not start). Talk to the API server: `plans` (stores and loads) and `pod_warnings` (lists events).
May import `watching` and what is below it; knows no situation of a run.
"""
