"""Container images: one archive each, built from the clone's recipe, and the forms made of it."""

from __future__ import annotations

from iobench.images.catalogue import find
from iobench.images.forms import in_form, make_form
from iobench.images.model import DEFAULT_FOLDER, FORMS, NAMES, Image

__all__ = ["DEFAULT_FOLDER", "FORMS", "NAMES", "Image", "find", "in_form", "make_form"]
