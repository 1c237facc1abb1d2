"""Random kills of every process under runs that are watched from outside; `python -m chaos --help`."""
