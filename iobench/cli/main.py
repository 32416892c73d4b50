"""The command line: parses, calls, prints and exits; nothing else does."""

from __future__ import annotations

import io
import os
import signal
import sys

import click

import iobench
from iobench.cli.audit import audit
from iobench.cli.console import INTERRUPTED, complain
from iobench.cli.data import data
from iobench.cli.image import image
from iobench.cli.listing import doctor, list_
from iobench.cli.results import compare, report, show
from iobench.cli.run import run
from iobench.cli.watch import watched
from iobench.core.errors import IobenchError, environment
from iobench.host import tools


def main() -> None:
    """Run the command line; the exit status is documented in ``iobench --help``."""
    sys.exit(watched(_command))


def _command() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without a character gets a "?"
            stream.reconfigure(errors="replace")
    try:
        status = cli(standalone_mode=False)
        sys.stdout.flush()
    except IobenchError as error:
        status = complain(str(error))
    except BrokenPipeError:  # `iobench list | head`
        _drop_output()
        status = 0
    except OSError as error:
        _drop_output()
        status = complain(environment(error))
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "iobench"
        status = complain(f"{error.format_message()} (see `{where} --help`)")
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted; the same command goes on where it stopped")
        status = INTERRUPTED
    return status if isinstance(status, int) else 0


def _drop_output() -> None:
    """Write what is buffered, or drop it: Python would fail again at its end, with status 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(iobench.__version__, prog_name="iobench")
def cli() -> None:
    """Find where a training run loses time: storage, preprocessing, compute, network or container.

    \b
    First steps:
      iobench doctor                check what can be measured on this machine
      iobench run                   run the default suite (25 minutes, no configuration)
      iobench show results          show limits, stalls and comparisons
      iobench run --data TREE       use your own ImageFolder tree

    \b
    Exit status:
      0    success
      1    a trial failed or was invalid (all records are kept)
      2    error in the input or environment; stderr gives the remedy
      130  interrupted (continue with `iobench run --resume`)
    """
    tools.extend_path()


for command in (audit, data, doctor, image, list_, run, show, report, compare):
    cli.add_command(command)


if __name__ == "__main__":
    main()
