#!/bin/sh
# run.sh          checks format, lint and types, then runs the tests
# run.sh breadth  runs those that repeat a claim over further members, forms and faults (marker breadth)
#
# Four at a time, as half of their time they wait: first those that need no image and no Caffe, while
# these are made; then those that do (marker system), beside one Docker daemon, a file's tests in one
# process.
# IMAGES is the images' folder.  What cannot be made is named, and the tests that need it are
# skipped; where IOBENCH_REQUIRE names it, they are not even begun.  Podman keeps its images outside
# this folder: those that came with this run go at its end.  What else lies outside of the clone that
# was not there before is named (tests/outside.py), and fails the run.
# Some tests are of what the machine does: which pages its kernel keeps, how soon a process runs.  What
# fails beside the others, if it is at most MOST tests of a run that came to its end, runs once more
# with nothing beside it, and is named either way.
cd "$(dirname "$0")/.." || exit
images=$(realpath "${IMAGES:-images}")
scope=${1:-not breadth}

make_stack() { # capability, what, command: fails where a required one cannot be made
    capability=$1 what=$2
    shift 2
    "$@" &
    trap "kill $!; wait $!; exit" TERM
    wait $! && return
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

MOST=5
tests() { # marker, how processes share, words before pytest: runs the tests of a marker
    marker=$1 shared=$2
    shift 2
    rm -rf "$(cache)"
    "$@" .venv/bin/python -m pytest -n 4 --dist "$shared" -m "$marker" --durations=20 \
        -o cache_dir="$(cache)"
}

FAILED=1 # pytest's exit status where all tests ran; others are for runs cut short
again() { # exit status, and the same: runs once more what failed
    [ "$1" = $FAILED ] || return
    marker=$2
    shift 3
    failed=$(.venv/bin/python -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' \
        "$(cache)/v/cache/lastfailed" 2>/dev/null)
    [ "${failed:-99}" -le "$MOST" ] || return
    echo "iobench: $failed of the tests '$marker' failed, and run once more with nothing beside them" >&2
    "$@" .venv/bin/python -m pytest -v --last-failed --last-failed-no-failures none -m "$marker" \
        -o cache_dir="$(cache)"
}

cache() {
    echo ".pytest_cache/$marker"
}

tidy() {
    kill $made $collecting 2>/dev/null
    wait $made $collecting
    rm -f "$log" "$outside"
    remove_podman_images
}

export IOBENCH_TEST_RUN=$$
unset PYTHONDONTWRITEBYTECODE # bytecode saves 0.4 s of each of the thousands of processes
kept=$(podman_images)
log=$(mktemp)
outside=$(mktemp)
.venv/bin/python -m tests.outside >"$outside"
make_stacks >"$log" 2>&1 &
made=$! collecting=
trap tidy EXIT
trap 'exit 130' INT TERM

if [ "$scope" != breadth ]; then
    # what pytest makes of the tests is kept; else each of the four processes below would make it
    .venv/bin/python -m pytest --collect-only -qq -p no:cacheprovider >/dev/null 2>&1 &
    collecting=$!
    make lint || exit
    wait $collecting
    collecting=
fi
status=0 first=0
computing="not system and $scope"
tests "$computing" worksteal nice -n 5 || first=$?
tail -n +1 -f --pid=$made "$log"
wait $made || exit
[ $first = 0 ] || again $first "$computing" worksteal nice -n 5 || status=1
export IOBENCH_TEST_IMAGES="$images"
set -- "system and $scope" loadfile .venv/bin/python -m tests.build.containers
tests "$@" || again $? "$@" || status=1
remove_podman_images
.venv/bin/python -m tests.outside "$outside" || status=1
exit $status
