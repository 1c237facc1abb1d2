"""`python -m pilothouse_runner`: one attempt of one run."""

from pilothouse_runner.process import main

if __name__ == "__main__":
    main()
