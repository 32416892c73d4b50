"""The script of a batch job: directives, the user's set-up, one suite; pure text."""

from __future__ import annotations

import dataclasses
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from iobench.core.jobs import JobRequest, Scheduler
from iobench.core.members import SchedulerBackend

#: Before a job's limit, in which an interrupted suite ends its trial and writes its report.
LEAVE_S, LEAVE_SHARE = 60, 0.25
#: So often a suite is begun: one that never comes to its end does not eat up an account.
MOST_STARTS = 20


@dataclasses.dataclass(frozen=True)
class JobExtras:
    """What a job's shell does before the suite.

    ``folder``: where it works.  ``modules``: loaded by ``module load``.  ``lines``: of shell, as
    the user wrote them.  ``variables``: set in it.
    """

    folder: str
    modules: Sequence[str] = ()
    lines: Sequence[str] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


def text(
    backend: SchedulerBackend, scheduler: Scheduler, request: JobRequest, suites: Sequence[Path],
    iobench: Sequence[str], options: Sequence[str], around: JobExtras,
) -> str:  # fmt: skip
    """Return the script that runs a suite in its folder, or one of several by an array.

    ``iobench``: words that begin a command of it.  ``options``: of ``iobench run``.
    """
    limit_s = request.time_s - round(min(LEAVE_S, LEAVE_SHARE * request.time_s))
    command = shlex.join([*iobench, "run"]), shlex.join(options)
    submit = f'{shlex.join([*iobench, "submit"])} --resume --results "$suite"'
    # a login shell: `module` is a function of it
    first = "#!/bin/bash -l" if around.modules else "#!/bin/bash"
    lines = [
        first,
        *scheduler.directives(request),
        "",
        f"cd {shlex.quote(around.folder)} || exit",
        *(f"module load {shlex.quote(module)}" for module in around.modules),
        *around.lines,
        *(f"export {name}={shlex.quote(value)}" for name, value in around.variables.items()),
        *_suite(suites, backend.element),
        _BODY.format(
            number=backend.number,
            limit_s=limit_s,
            time_s=request.time_s,
            command=f'{command[0]} "$suite/spec.toml" --into "$suite" {command[1]}'.rstrip(),
            most=MOST_STARTS,
            again=backend.again.replace("SUBMIT", submit),
        ),
    ]
    return "\n".join(lines)


def _suite(suites: Sequence[Path], element: str) -> list[str]:
    if len(suites) == 1:
        return [f"suite={shlex.quote(str(suites[0]))}"]
    rows = [f"{n}) suite={shlex.quote(str(suite))} ;;" for n, suite in enumerate(suites, 1)]
    return [f'case "${element}" in', *textwrap.indent("\n".join(rows), "    ").split("\n"), "esac"]


_BODY = """\
exec >>"$suite/job.log" 2>&1
echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) ${{{number}:-}} $(hostname)" | tee -a "$suite/starts"
before=$(find "$suite/runs" -name '*.json' | wc -l)

# Begins the suite, or goes on with it.  It is interrupted in time before the job's {time_s} s end.
timeout --foreground --signal=TERM {limit_s} \\
    {command}
status=$?

# 124: the time ran out.  What is finished is kept; the rest runs when the job's turn comes again.
if [ "$status" -eq 124 ]; then
    if [ "$(find "$suite/runs" -name '*.json' | wc -l)" -eq "$before" ]; then
        echo "iobench: no trial ended within the job's time: submit with a longer --time"
    elif [ "$(wc -l <"$suite/starts")" -ge {most} ]; then
        echo "iobench: begun {most} times: is --time long enough?"
    else
        {again}
    fi
fi
exit "$status"
"""
