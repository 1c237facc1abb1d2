"""Adapters of the engine's ports: whatever a runner uses to reach the world."""
