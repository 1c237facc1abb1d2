"""The API server as the operator and the operator API see it: the connection, and a thin client of raw objects.

The only modules of the two that talk to the API server directly, and the one form of their logs. Nothing of runs is
decided here.
"""
