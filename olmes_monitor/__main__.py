"""`python -m olmes_monitor` is the command `olmes-monitor`."""

import sys

from olmes_monitor.cli import main

if __name__ == "__main__":
    sys.exit(main())
