"""Guardrails: what a text must be before it goes on (engine.md §4).

A check is one pure function; the gate runs the checks in order. Who asks a model to judge, where a gate stands in a
turn and what is journaled of it does not belong here.
"""
