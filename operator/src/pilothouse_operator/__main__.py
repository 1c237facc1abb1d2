"""`python -m pilothouse_operator`: one operator process."""

import asyncio
import logging
import sys

from pydantic import ValidationError

from pilothouse_kubernetes.connection import LoginError, find_credentials
from pilothouse_kubernetes.process_logs import configure_logging
from pilothouse_operator.process.host import Host
from pilothouse_operator.settings import OperatorSettings
from pilothouse_operator.watching.references import explain

EXIT_USAGE = 2


async def _run(settings: OperatorSettings) -> int:
    return await Host(settings, find_credentials()).run()


def main() -> int:
    """Run until told to stop; return the exit code."""
    try:
        settings = OperatorSettings()
    except ValidationError as error:
        print(f"PILOTHOUSE_OPERATOR_*: {explain(error)}", file=sys.stderr)
        return EXIT_USAGE
    configure_logging(settings.log_level)
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)  # it logs every object else
    try:
        return asyncio.run(_run(settings))
    except LoginError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
