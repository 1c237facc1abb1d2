"""`python -m pilothouse_console`: one process of the operator API."""

import asyncio
import sys

from pydantic import ValidationError

from pilothouse_console.host import Host
from pilothouse_console.letters import WrongKey
from pilothouse_console.settings import ApiSettings
from pilothouse_kubernetes.connection import LoginError, find_credentials
from pilothouse_kubernetes.process_logs import configure_logging

EXIT_USAGE = 2


async def _run(settings: ApiSettings) -> int:
    return await Host(settings, find_credentials()).run()


def main() -> int:
    """Run until told to stop; return the exit code."""
    try:
        settings = ApiSettings()
    except ValidationError as error:
        first = error.errors()[0]
        print(f"PILOTHOUSE_API_{'_'.join(map(str, first['loc'])).upper()}: {first['msg']}", file=sys.stderr)
        return EXIT_USAGE
    configure_logging(settings.log_level)
    try:
        return asyncio.run(_run(settings))
    except (LoginError, WrongKey) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
