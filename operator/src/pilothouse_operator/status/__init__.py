"""What people see of a run: its status, its conditions, its Events.

Pure: `rendering` (status as a whole), `run_conditions` (one function a condition), `events` (which Events, and their
manifests). Talks to the API server: `event_poster`. May import `runs` and what is below it; writes no status itself.
"""
