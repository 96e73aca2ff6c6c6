"""`python -m trioton` is the command `trioton`."""

import sys

from trioton.cli import main

sys.exit(main())
