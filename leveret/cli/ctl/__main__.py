"""`python -m leveret.cli.ctl`."""

import sys

from leveret.cli.ctl.main import main

sys.exit(main())
