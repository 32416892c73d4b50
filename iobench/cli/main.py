"""The command line: parses, calls, prints and exits; nothing else does."""

from __future__ import annotations

import importlib
import os
import sys
from collections import UserDict
from typing import Any

import click

import iobench
from iobench.cli import start
from iobench.cli.console import complain
from iobench.cli.start import INTERRUPTED, STDOUT, goes_on
from iobench.cli.watch import watched
from iobench.core.errors import IobenchError, environment
from iobench.host import tools

_UNWRITTEN = (
    "standard output cannot be written; nothing else is lost: `iobench show` prints a suite's "
    "results again"
)


def main() -> None:
    """Run the command line; the exit status is documented in ``iobench --help``."""
    sys.exit(watched(command))


def command() -> int:
    """Run the command line in this process; return the exit status."""
    start.interruptible()
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
        lost = error.filename == STDOUT
        status = complain(
            f"{_UNWRITTEN} ({error.strerror})" if lost else environment(error) + start.then()
        )
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "iobench"
        status = complain(f"{error.format_message()} (see `{where} --help`)")
    except ImportError as error:
        status = complain(start.not_importable(error))
    except (KeyboardInterrupt, click.Abort):
        complain(f"interrupted; {goes_on()}")
        status = INTERRUPTED
    return status if isinstance(status, int) else 0


def _drop_output() -> None:
    """Write what is buffered, or drop it: Python would fail again at its end, with status 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Commands(UserDict[str, Any]):
    """Name of a command -> its module, which is imported when the command is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        module = importlib.import_module(f"iobench.cli.{self.data[name]}")
        return next(
            each
            for each in vars(module).values()
            if isinstance(each, click.Command) and each.name == name
        )


_COMMANDS = _Commands(
    audit="audit",
    compare="results",
    data="data",
    doctor="listing",
    explain="advice",
    image="image",
    list="listing",
    mlperf="mlperf",
    predict="advice",
    report="results",
    run="run",
    show="results",
    status="jobs",
    submit="jobs",
    tune="tune",
    watch="script",
)


@click.group(
    commands=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(iobench.__version__, prog_name="iobench")
def cli() -> None:
    """Find where a training run loses time: storage, preprocessing, compute, network or container.

    \b
    First steps:
      iobench doctor                check what can be measured on this machine
      iobench run                   run the default suite (25 minutes, no configuration)
      iobench show results          show limits, stalls and comparisons
      iobench explain results       causes, remedies and the gain to expect
      iobench predict results       what if: more workers, other accelerators, all cached
      iobench tune myjob.toml       search for the settings that train fastest, with proof
      iobench run --data TREE       use your own ImageFolder tree
      iobench submit --time 1h      run it as a job of the batch system

    \b
    Exit status:
      0    success
      1    an answer is missing, named on stderr (all records are kept)
      2    error in the input or environment; stderr gives the remedy
      130  interrupted; the last line of stderr is how to go on
    """
    tools.extend_path()


if __name__ == "__main__":
    start.begin()
    main()
