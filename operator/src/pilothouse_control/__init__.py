"""Decisions: validation, plan resolution, triggers and the judgement of references, as functions over values.

Belongs here: what follows from objects and a moment of time, for the operator and for the command line alike.
Does not belong here: clients, files, clocks, Kopf, and the loop of a run (`pilothouse_engine`).
"""
