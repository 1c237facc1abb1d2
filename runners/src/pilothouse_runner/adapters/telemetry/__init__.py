"""Traces and metrics of an attempt over OpenTelemetry: observers of its facts, and what sends what they make.

Loaded by `pilothouse_runner.telemetry` alone, where an endpoint is set. Nothing of it decides anything.
"""
