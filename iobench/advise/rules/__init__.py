"""The causes that iobench knows, one table a part of the job; a cause more is a row more."""

from iobench.advise.findings import Rule
from iobench.advise.rules import container, overlap, preparing, storage

#: Every cause, in the order in which equal gains are told.
RULES: tuple[Rule, ...] = (*storage.RULES, *preparing.RULES, *overlap.RULES, *container.RULES)
