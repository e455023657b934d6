"""`python -m rankwise` is the command line, for launchers such as torchrun that start a module."""

import sys

from rankwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
