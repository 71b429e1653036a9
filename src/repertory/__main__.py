"""``python -m repertory`` is the command line."""

from repertory.cli import main

if __name__ == "__main__":
    main()
