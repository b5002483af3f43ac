"""`python -m literate` is the `literate` command."""

from .cli import main

raise SystemExit(main())
