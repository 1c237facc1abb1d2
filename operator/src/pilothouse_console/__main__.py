"""`python -m pilothouse_console`: one process of the operator API."""

import asyncio
import logging
import sys

import structlog
from pydantic import ValidationError

from pilothouse_console.host import Host
from pilothouse_console.letters import WrongKey
from pilothouse_console.settings import ApiSettings
from pilothouse_kubernetes.connection import LoginError, find_credentials

EXIT_USAGE = 2


def configure_logging(level: str) -> None:
    """Write JSON lines to stderr, those of libraries too."""
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    removal = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[removal, structlog.processors.JSONRenderer()],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


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
