"""Detectors: where personal data and secrets stand in a text. They find; masking is `guardrails.masks`."""
