#!/bin/sh
# Runs every test on two processors: first those that need no image and no Caffe, while these are
# made; then those that do (marker system), beside one Docker daemon, a file's tests in one process.
# IMAGES is the images' folder.  What cannot be made is named, and the tests that need it are
# skipped; where IOBENCH_REQUIRE names it, they are not even begun.  Podman keeps its images outside
# this folder: those that came with this run go at its end.  What else lies outside of the clone that
# was not there before is named (tests/outside.py), and fails the run.
cd "$(dirname "$0")/.." || exit
images=$(realpath "${IMAGES:-images}")

make_stack() { # capability, what, command: fails where a required one cannot be made
    capability=$1 what=$2
    shift 2
    "$@" && return
    echo "iobench: $what: the tests that need it are skipped" >&2
    case ",${IOBENCH_REQUIRE:-}," in *,"$capability",*) false ;; esac
}

make_stacks() {
    make_stack image 'not every image was built' \
        .venv/bin/iobench image build --form all --images "$images" &&
        make_stack caffe 'no Caffe was installed' \
            .venv/bin/iobench image install caffe --images "$images"
}

podman_images() {
    podman images --quiet --no-trunc --filter 'reference=localhost/iobench-*' 2>/dev/null | sort -u
}

remove_podman_images() {
    podman_images | grep -vxF "$kept" | xargs -r podman rmi >/dev/null 2>&1
}

tidy() {
    kill $made 2>/dev/null
    rm -f "$log" "$outside"
    remove_podman_images
}

export IOBENCH_TEST_RUN=$$
kept=$(podman_images)
log=$(mktemp)
outside=$(mktemp)
.venv/bin/python -m tests.outside >"$outside"
make_stacks >"$log" 2>&1 &
made=$!
trap tidy EXIT
trap 'exit 130' INT TERM

status=0 # the builds take longest: they go first
nice -n 5 .venv/bin/python -m pytest -n 2 --dist worksteal -m 'not system' --durations=10 || status=1
tail -n +1 -f --pid=$made "$log"
wait $made || exit
IOBENCH_TEST_IMAGES=$images .venv/bin/python -m tests.build.containers \
    .venv/bin/python -m pytest -n 2 --dist loadfile -m system --durations=20 || status=1
remove_podman_images
.venv/bin/python -m tests.outside "$outside" || status=1
exit $status
