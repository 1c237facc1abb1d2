"""Validation: the same judgement of manifests at the operator and on the command line.

`validate` judges the shape (what admission judges too) and then a table of small pure checks.
"""

from pilothouse_control.validation.judge import Sources, as_document, validate
from pilothouse_control.validation.scene import KnownPrice

__all__ = ["KnownPrice", "Sources", "as_document", "validate"]
