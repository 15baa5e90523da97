"""``python -m gradspec``: the command line."""

from gradspec.cli import main

if __name__ == "__main__":
    main(prog_name="python -m gradspec")
