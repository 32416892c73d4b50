"""The command `iobench`; without the driver's libraries, one line on how to install them."""

from __future__ import annotations

import sys

from iobench.cli import start
from iobench.core.errors import one_line


def main() -> None:
    """Run the command line; exit with status 2 where only the worker side is installed."""
    start.begin()
    try:
        from iobench.cli import main as command
    except ImportError as error:
        sys.stderr.write(f"iobench: {one_line(start.not_importable(error))}\n")
        sys.exit(2)
    command.main()


if __name__ == "__main__":
    main()
