"""Makes the generator importable: it lives in hack/, outside of the distribution."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hack"))
