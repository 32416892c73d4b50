"""The command `iobench`; without the driver's libraries, one line on how to install them."""

from __future__ import annotations

import os
import sys

from iobench.cli import start
from iobench.core.errors import one_line


def main() -> None:
    """Run the command line; exit with status 2 where only the worker side is installed."""
    start.begin()
    try:
        from iobench.cli import main as command
    except ModuleNotFoundError as error:
        if (error.name or "iobench").startswith("iobench"):
            raise
        sys.stderr.write(
            f"iobench: {error.name} is not installed here: the command line needs Python 3.11 or "
            "newer and `pip install 'iobench[driver]'`; what is here is the worker side alone\n"
        )
        sys.exit(2)
    except ImportError as error:
        found = os.environ.get("PYTHONPATH")
        if not found:
            raise
        words = one_line(f"a library cannot be imported ({error}); PYTHONPATH is {found}: unset it")
        sys.stderr.write(f"iobench: {words}\n")
        sys.exit(2)
    command.main()


if __name__ == "__main__":
    main()
