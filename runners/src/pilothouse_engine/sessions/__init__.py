"""Conversations that go on from run to run (engine.md §11): what is loaded, what a run has said, what is kept of it.

Nothing of it is imported by a run that has no session. Whatever is stored has passed the guardrails of the run that
said it; a store of sessions (`ports.Sessions`) sees bytes.
"""
