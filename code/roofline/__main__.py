"""`python -m roofline`: see `roofline.support.cli`."""

from roofline.support.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
