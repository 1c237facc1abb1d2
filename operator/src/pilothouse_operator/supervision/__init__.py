"""Supervision as the operator keeps it; its rules are `pilothouse_control.supervision`.

Pure: `record` (status.supervision of a run) and `tallies` (the counters of a Supervisor). Keep something in memory:
`departed`, `judges`. Talk to the world: `criteria` (reads ConfigMaps) and `judge_client` (HTTP to the judge).
May import `watching` and what is below it.
"""
