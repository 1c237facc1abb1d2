"""The pod's process, and the adapters of the engine's ports.

`python -m pilothouse_runner` runs one attempt of one run: plan, journal, engine, fenced status. Decisions belong in
`pilothouse_engine`; what talks to the world lives in `adapters`.
"""
