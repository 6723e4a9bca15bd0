"""`python -m tokenloom`: the command line, also under torchrun."""

from tokenloom.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
