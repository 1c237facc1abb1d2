"""The host of local runs, in `.pilothouse`: `creation` makes one, `host` advances it to its end in this process.

`state` keeps a run's files, `store` shows them to the engine, `runs` shows them to the verbs (`patches`: what may be
changed); `children`, `supervision`, `sessions` and `cluster` are what a cluster's operator does beside that.
"""
