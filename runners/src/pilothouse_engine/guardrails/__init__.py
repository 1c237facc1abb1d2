"""Guardrails: what a text must be before it goes on (engine.md §4).

A check is one pure function; the gate runs the checks in order; `judgements` says where gates stand in a turn and
`judging` performs one. Nothing of it is loaded before a gate is planned, or something is masked for people. The facts
and what they do to the state of a run are the engine's own (`facts`, `state`).
"""
