"""What a stack's Python can import: `docker run IMAGE`, `iobench image verify` and the doctor.

    python -m iobench.worker.self_check STACK [--json] [MODULE ...]

Imports the stack's libraries (or the modules named) and prints one line each; status 1 where one
cannot be imported.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from typing import Any, Dict, Iterable, Mapping, Sequence

from iobench.core import registry
from iobench.host.fingerprint import version_of


def examine(libraries: Mapping[str, str], modules: Iterable[str]) -> Dict[str, Any]:
    """Import ``modules``.

    ``libraries``: module -> distribution.  Returns ``python`` and ``executable``, ``versions``
    (module -> version, "" where it states none) and ``broken`` (module -> the error).
    """
    errors = {module: _import(module) for module in modules}
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "versions": {m: _version(m, libraries) for m, error in errors.items() if not error},
        "broken": {m: error for m, error in errors.items() if error},
    }


def _import(module: str) -> str:
    try:
        importlib.import_module(module)
    except (ImportError, OSError) as error:
        return " ".join(str(error).split())
    return ""


def _version(module: str, libraries: Mapping[str, str]) -> str:
    known = version_of(libraries.get(module, module))
    return known or str(getattr(sys.modules[module], "__version__", ""))


def main(argv: Sequence[str]) -> int:
    """Print what can be imported; ``argv``: as above."""
    name, *words = argv
    libraries = registry.load("stacks", name).libraries
    found = examine(libraries, [w for w in words if w != "--json"] or libraries)
    if "--json" in words:
        print(json.dumps(found))
    else:
        print(f"ok  Python {found['python']} at {found['executable']}")
        for module, version in found["versions"].items():
            print(f"ok  {module} {version}".rstrip())
        for module, reason in found["broken"].items():
            print(f"no  {module}: {reason}")
        print(f"{'no' if found['broken'] else 'ok'}  imported: {', '.join(found['versions'])}")
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
