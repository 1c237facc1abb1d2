"""`python -m pilothouse_cli`."""

from pilothouse_cli.main import main

if __name__ == "__main__":
    main()
