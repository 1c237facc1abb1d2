"""What holds for runs wherever they are: `port`, what is asked of a place that holds them, and what is read out of one.

`turns`, `results`, `interventions`, `recordings` and `pending` (calls that wait for a person) read; `fleets` directs
many runs at once. Nothing here knows a folder or a cluster.
"""
