"""Where a worker finds things inside a container, and what it is given by name."""

#: Where an image has its (empty) mount points, and a worker finds things inside a container.
DATA_INSIDE, WORK_INSIDE, CODE_INSIDE = "/iobench/data", "/iobench/work", "/iobench/code"
JPEG_INSIDE, PLUGINS_INSIDE = "/iobench/jpeg", "/iobench/plugins"
MOUNT_POINTS = (DATA_INSIDE, WORK_INSIDE, f"{CODE_INSIDE}/iobench", JPEG_INSIDE, PLUGINS_INSIDE)

#: Set for every worker, to the name of its start: by it the host's processes are found.
HELD = "IOBENCH_HELD"

#: A traced worker asks for these two paths, which are nowhere, before and after its loop.
CALLS_BEGIN, CALLS_END = "/iobench/calls-begin", "/iobench/calls-end"

#: Where an image has its stack, at the same place in every form of the image, and its Python.
PREFIX_INSIDE = "/opt/iobench"
PYTHON_INSIDE = f"{PREFIX_INSIDE}/bin/python3"

#: Programs that a worker may start inside are looked for here.
PATH_INSIDE = f"{PREFIX_INSIDE}/bin:/usr/local/bin:/usr/bin:/bin"

#: The same in a folder of the user's own, which states no PATH.
OWN_PATH = f"/opt/conda/bin:/opt/venv/bin:{PATH_INSIDE}"
