"""`python -m pilothouse_runner.judge`: the judge of one installation.

Exit codes: 0 it was told to end, 2 the pod, its table or its token is wrong.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping

import uvicorn

from pilothouse_api import __version__
from pilothouse_runner.adapters.secrets import FileSecrets
from pilothouse_runner.judge.files import Callers, TableFile
from pilothouse_runner.judge.local import LocalJudge
from pilothouse_runner.judge.metrics import Metrics
from pilothouse_runner.judge.service import Desk, build_app
from pilothouse_runner.judge.settings import JudgeSettings, SettingsError, read_settings
from pilothouse_runner.judge.table import TableInvalid
from pilothouse_runner.log_lines import LogLines, LogLinesHandler

EXIT_WRONG = 2
GRACE_SECONDS = 25
"""How long verdicts that are under way may take at the end: less than the pod's grace period of 30 s."""
KEEP_ALIVE_SECONDS = 75
"""Longer than the operator keeps a connection, so that it is never the judge that closes one just as it is used."""


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Serve until told to end; return the exit code."""
    # Process 1 of a container does not hear a signal that it has no handler for; the server brings its own later.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    lines = LogLines(sys.stdout, {"component": "judge"})
    logging.getLogger().addHandler(LogLinesHandler(lines))
    try:
        return asyncio.run(serve(read_settings(environment), lines))
    except (SettingsError, TableInvalid) as error:
        lines.say("judge.exit", "error", exitCode=EXIT_WRONG, message=str(error))
        return EXIT_WRONG
    finally:
        lines.close()


async def serve(settings: JudgeSettings, lines: LogLines) -> int:
    """Serve until SIGTERM or SIGINT; verdicts that are under way then come to their end. Raises what main names."""
    metrics, callers = Metrics(), Callers(settings.token_path)
    judge = LocalJudge({}, FileSecrets(settings.secrets_path))
    table = TableFile(settings.models_path, judge, metrics, lines)
    if not callers.token():
        raise SettingsError(f"{settings.token_path} holds no token: nobody could ask")
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(Desk(judge, table, callers, metrics, lines)),
            host="0.0.0.0",
            port=settings.port,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    lines.say("judge.serving", version=__version__, models=sorted(await judge.models()), port=settings.port)
    try:
        await server.serve()
    finally:
        await judge.aclose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
