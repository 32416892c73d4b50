"""A suite whose names a stranger chose: everything that a report shows and that is not ours."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Tuple

from iobench.core.cases import Plan
from iobench.core.records import Record
from tests.build import report

#: What a name may try: elements, attributes, templates, markup, escapes, formulas, mathematics.
NAMES = {
    "element": "</title></svg></style></script><script>owned=1</script><img src=x onerror=owned=1>",
    "attribute": '"\'><b onmouseover=owned=1 style=\'x\' href="javascript:owned=1" x="',
    "comment": "--><script>owned=1</script><!-- ]]><![CDATA[ &lt;script&gt; &#60;b&#62;",
    "template": "{{ a.seed }}{% raw %}${7*7}#{1}<%= 1 %>`id`$(id);|&",
    "markup": "[/][/bold][link=http://x]a[/link] **b** [c](http://x) :smile: [bold red",
    "escape": "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\x00\x08\r\n\u202eowned\u2028\t",
    "mathematics": "$\\frac{1}{0}$ $ \\$ $_x^{$ a_b^c \\undefined",
    "script": "\u540d\u524d \U0001f4be e\u0301 \ufffd\ufeff",
}
#: All of them, in one name.
ALL = " ".join(NAMES.values())
#: Text that a spreadsheet takes for a formula begins so.
FORMULAS = ("=", "+", "-", "@", "\t=", "\r=")


def suite(evil: str, *, first: bool = False) -> Tuple[Plan, List[Record]]:
    """Return the suite of ``tests/build/report`` with ``evil`` in every name from outside.

    ``first``: before the name, else after it.
    """
    plan, records = report.suite()
    data = plan.dataset
    outside = {case.label for case in plan.cases} | {data.root, data.name, data.source, "none"}
    outside |= {reason for record in records for reason in record.reasons}
    outside |= _texts([rank.fingerprint for record in records for rank in record.ranks])
    outside |= _texts([[r.mount, r.runtime, r.cache.beyond] for r in records])
    outside -= {"", "ext4"} | {t.cache for t in plan.trials}  # these decide what is done

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return (evil + value if first else value + evil) if value in outside else value
        if isinstance(value, dict):
            return {key: changed(inner) for key, inner in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(changed, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(changed, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: changed(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return dataclasses.replace(value, **fields)
        return value

    return changed(plan), changed(records)


def _texts(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    inner = value.values() if isinstance(value, dict) else value
    return set().union(*map(_texts, inner)) if isinstance(value, (dict, list, tuple)) else set()
