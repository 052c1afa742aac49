"""`python -m seepage`: the same as the command `seepage`."""

from seepage.cli import main

if __name__ == "__main__":
    main()
