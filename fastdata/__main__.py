"""`python -m fastdata` is the `fastdata` command."""

from fastdata.cli import main

raise SystemExit(main())
