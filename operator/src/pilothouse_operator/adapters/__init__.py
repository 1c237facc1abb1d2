"""Adapters: the only modules that talk to the API server directly."""
