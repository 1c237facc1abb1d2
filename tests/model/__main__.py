"""`make model`: every scenario for as long as is given, nearest states first, then random ways beyond them."""

import argparse
import sys

from model.checker import Report, explore, walk
from model.operator_process import silent
from model.scenarios import SCENARIOS
from model.world import PilothouseModel, World


def main() -> int:
    """Check, print, and return 1 where a property does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="scenario", help=f"of: {', '.join(SCENARIOS)}")
    parser.add_argument("--seconds", type=float, default=120.0, help="for each scenario")
    parser.add_argument("--walks", type=int, default=100, help="random ways through each")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    is_broken = False
    for name in given.names or SCENARIOS:
        with silent():
            model = PilothouseModel(SCENARIOS[name])
            report: Report[World] = explore(model, seconds=given.seconds)
            walked: Report[World] = walk(model, walks=given.walks, seed=given.seed)
        print(
            f"{name}: {report.say()}\n  and {walked.states} random ways (seed {given.seed}): {walked.say()}", flush=True
        )
        is_broken = is_broken or report.violation is not None or walked.violation is not None
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main())
