"""One start of a runner's process for `make bench-start`: what `python -m pilothouse_runner` does, outside of a pod.

What differs: the folder of the token, and that the number of loaded modules is told at the end (to the file
descriptor that BENCH_REPORT_FD names).
"""

import os
import sys

from pilothouse_api import names

names.TOKEN_PATH = os.environ["BENCH_TOKEN_PATH"]
leave = os._exit


def report_and_leave(code: int) -> None:
    loaded = sum(module is not None for module in sys.modules.values())  # None: declared absent, nothing is loaded
    os.write(int(os.environ["BENCH_REPORT_FD"]), str(loaded).encode())
    leave(code)


os._exit = report_and_leave

from pilothouse_runner.__main__ import main  # noqa: E402  the folder is set first

main()
