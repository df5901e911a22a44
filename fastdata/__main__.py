"""`python -m fastdata` is the `fastdata` command."""

from fastdata.cli.main import main

raise SystemExit(main())
