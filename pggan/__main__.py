"""`python -m pggan VERB key=value …`."""

import sys

from pggan.cli import main

sys.exit(main())
