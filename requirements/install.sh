#!/bin/sh
# Sets up what iobench needs, says first what that is, and does nothing twice.
#
#   requirements/install.sh run         .venv with the pinned packages of run.txt, and iobench itself
#   requirements/install.sh extra       the same, and the libraries of single members, extra.txt
#   requirements/install.sh dev         the same, and dev.txt
#   requirements/install.sh fio         the program fio, where it can be installed; never fails
#   requirements/install.sh test-tools  the programs that the system tests drive; never fails
#   requirements/install.sh caffe-pytest  pytest for Caffe's Python into .tools; never fails
#   requirements/install.sh test-host   what the tests take from the machine itself, until it is
#                                       started again: /dev/fuse for every user, loop devices
#   requirements/install.sh make        the program make
#   requirements/install.sh containers  docker where neither it nor podman is here, mmdebstrap, and
#                                       apptainer in .tools/apptainer; never fails
#
# PYTHON       interpreter to build .venv from (3.11 or newer)       TORCH_INDEX  where torch is from
# PIP_ARGS     more arguments for pip                                WHEELS       folder of wheels: no
#                                                                    network is used when it exists
set -eu
cd "$(dirname "$0")/.."
venv=.venv
wheels=${WHEELS:-wheels}
# Servers' and disks' programs, which Debian leaves out of an ordinary user's PATH.
case :$PATH: in *:/usr/bin:*) PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin ;; esac

say() { printf 'iobench: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }

as_root() { # run a command as root, or return 1 when nothing here allows it without a password
    if [ "$(id -u)" = 0 ]; then "$@"
    elif sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    as_root true || return 1
    ( # apt waits for another's lock while it installs, but not while it updates
        flock 9
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 \
            -o APT::Update::Error-Mode=any update >/dev/null 9<&- || exit 1
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
            install --no-install-recommends "$@" >/dev/null 9<&-
    ) 9<requirements/install.sh
}

find_python() {
    # Debian's own interpreter is what the images hold: taken before another python3 of the same
    # minor version on PATH (pyenv's, conda's), so that bare metal and image run the same Python.
    own=/usr/bin/python3.11
    minor='import sys; print("%d.%d" % sys.version_info[:2])'
    if [ -z "${PYTHON:-}" ] && [ -x $own ] && [ "$(python3 -c "$minor" 2>/dev/null)" = 3.11 ]; then
        echo $own
        return
    fi
    for python in "${PYTHON:-python3}" python3.11 python3.12 python3.13; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$python"
            return
        fi
        [ -z "${PYTHON:-}" ] || break
    done
    die "needs Python 3.11 or newer, and ${PYTHON:-python3} is not: name one with" \
        "\`make setup PYTHON=/path/to/python3.11\` (on a cluster: \`module avail python\`)"
}

make_venv() { # Debian's python3 comes without ensurepip: get it, or do without
    python=$1
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        say "$python has no ensurepip (Debian: package $package)"
        apt_install "$package" || apt_install python3-venv || say "could not install it; trying without"
    fi
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv --clear "$venv"
        return
    fi
    "$python" -m venv --clear --without-pip "$venv"
    pip_wheel=$(find "$wheels" -name 'pip-*.whl' 2>/dev/null | sort | tail -n 1)
    if [ -n "$pip_wheel" ]; then # a wheel is a zip file, and Python runs those
        "$venv/bin/python" "$pip_wheel/pip" -q install --no-index --find-links "$wheels" pip
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m pip -q --python "$venv/bin/python" install pip
    else
        rm -rf "$venv"
        die "cannot make a virtual environment: ask for \`apt-get install python3-venv\`, or name" \
            "another interpreter with \`make setup PYTHON=/path/to/python3.11\`"
    fi
}

pip_install() {
    quiet=-q
    [ -t 2 ] && quiet=
    if [ -d "$wheels" ]; then
        set -- --no-index --find-links "$wheels" "$@"
    elif [ -n "${TORCH_INDEX:-}" ]; then
        set -- --extra-index-url "$TORCH_INDEX" "$@"
    fi
    # shellcheck disable=SC2086  # PIP_ARGS and quiet are lists of words
    "$venv/bin/python" -m pip $quiet --disable-pip-version-check --no-input install ${PIP_ARGS:-} \
        -c requirements/constraints.txt "$@" ||
        die "pip could not install the packages above: without a network use the bundle" \
            "(docs/hpc.md); behind a proxy or mirror pass PIP_ARGS=..."
}

install_set() { # $1: run, extra or dev; each begins with the one before
    case $1 in extra) install_set run ;; dev) install_set extra ;; esac
    stamp=$venv/iobench-$1
    key=$(find requirements -name '*.txt' ! -name 'caffe*.txt' ! -name 'debian-*' | sort | xargs cat -- \
        pyproject.toml "$0" | sha256sum | cut -c 1-16)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        return
    fi
    # shellcheck disable=SC2046  # names of files
    count=$(cd requirements && cat "$1.txt" $(sed -n 's/^-r //p' "$1.txt") | grep -c '^[^#]*==' || :)
    from="the network"
    [ -d "$wheels" ] && from="$wheels/ (no network)"
    say "installing $count pinned packages and what they need into $venv from $from" \
        "($(case $1 in run) echo 'about 2.5 GB on disk, mostly torch and DALI' ;;
            extra) echo 'for single loaders, formats and decoders' ;; *) echo 'for tests' ;; esac))"
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(find_python)
        make_venv "$python"
    fi
    pip_install -r "requirements/$1.txt"
    [ "$1" != run ] || PYTHONWARNINGS=ignore pip_install --no-deps --no-build-isolation -e .
    echo "$key" >"$stamp"
}

install_fio() {
    command -v fio >/dev/null && return
    say "installing the program fio (apt-get install fio): it measures what the filesystem can give"
    if ! apt_install fio; then
        say "fio is missing and cannot be installed from here; the ceiling will say n/a." \
            "Ask for it: \`apt-get install fio\`, \`dnf install fio\` or \`module load fio\`"
    fi
}

install_caffe_pytest() {
    folder=.tools/pytest-caffe
    list=requirements/caffe-dev.txt
    cmp -s "$list" "$folder/$(basename $list)" && return
    say "installing pytest for Caffe's Python 3.9 into $folder"
    rm -rf "$folder"
    # shellcheck disable=SC2086  # a list of words
    if "$venv/bin/python" -m pip -q --disable-pip-version-check --no-input install ${PIP_ARGS:-} \
        --no-deps --require-hashes --only-binary :all: --python-version 3.9 --target "$folder" -r "$list"
    then cp "$list" "$folder"
    else say "could not install it: the tests that need it are skipped"
    fi
}

prepare_host() { # nothing else of the machine is changed by a test, but packages by test-tools
    [ -c /dev/fuse ] || change_host "tests mount images without root" modprobe fuse
    [ -z "$(find /dev/fuse ! -perm -666 2>/dev/null)" ] ||
        change_host "ordinary users mount images, as where udev runs" chmod 666 /dev/fuse
    [ -c /dev/loop-control ] || change_host "tests slow a device down" modprobe loop
}

change_host() { # why, command
    why=$1
    shift
    say "this machine: \`$*\` ($why)"
    as_root "$@" || say "not possible here, so these tests are skipped: ask for \`$*\` as root"
}

install_test_tools() {
    missing=
    command -v make >/dev/null || missing="$missing make"
    command -v git >/dev/null || missing="$missing git"
    command -v patchelf >/dev/null || missing="$missing patchelf"
    command -v mmdebstrap >/dev/null || missing="$missing mmdebstrap"
    command -v fio >/dev/null || missing="$missing fio"
    command -v chromium >/dev/null || missing="$missing chromium"
    command -v chromedriver >/dev/null || missing="$missing chromium-driver"
    command -v strace >/dev/null || missing="$missing strace"
    command -v mkfs.ext4 >/dev/null || missing="$missing e2fsprogs"
    command -v dockerd >/dev/null || missing="$missing docker.io"
    command -v podman >/dev/null || missing="$missing podman runc uidmap fuse-overlayfs"
    command -v ch-run >/dev/null || missing="$missing charliecloud"
    command -v mksquashfs >/dev/null || missing="$missing squashfs-tools"
    command -v fusermount3 >/dev/null || missing="$missing fuse3"
    command -v glusterd >/dev/null || missing="$missing glusterfs-server glusterfs-client"
    command -v mfsmaster >/dev/null || missing="$missing moosefs-master"
    command -v mfschunkserver >/dev/null || missing="$missing moosefs-chunkserver"
    command -v mfsmount >/dev/null || missing="$missing moosefs-client"
    command -v sshfs >/dev/null || missing="$missing sshfs"
    command -v ip >/dev/null || missing="$missing iproute2"
    command -v mpirun >/dev/null || missing="$missing openmpi-bin"
    command -v mpiexec.hydra >/dev/null || missing="$missing mpich"
    command -v ssh >/dev/null || missing="$missing openssh-client"
    [ -x /usr/sbin/sshd ] || missing="$missing openssh-server"
    [ -x /usr/sbin/slurmctld ] || missing="$missing slurmctld"
    [ -x /usr/sbin/slurmd ] || missing="$missing slurmd"
    command -v sbatch >/dev/null || missing="$missing slurm-client"
    [ -x /usr/sbin/munged ] || missing="$missing munge"
    command -v gcc >/dev/null || missing="$missing gcc libc6-dev"
    if [ -n "$missing" ]; then
        say "installing programs for the system tests:$missing"
        # shellcheck disable=SC2086  # a list of words
        without_services apt_install $missing ||
            say "could not install these without root and apt-get; the tests that" \
                "need them are skipped. Ask for \`apt-get install$missing\`"
    fi
    install_docker_program
}

without_services() { # run a command whose packages start no daemon (sshd, slurmctld, glusterd ...)
    policy=/usr/sbin/policy-rc.d # asked by every Debian package before it starts one
    status=0
    if [ -e $policy ] || ! as_root true; then
        "$@" || status=$?
        return $status
    fi
    trap 'as_root rm -f $policy' EXIT
    trap 'exit 130' INT TERM
    as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
    "$@" || status=$?
    as_root rm -f $policy
    trap - EXIT INT TERM
    return $status
}

install_docker_program() { # from Debian 13 on a package of its own
    if command -v dockerd >/dev/null && ! command -v docker >/dev/null; then
        say "installing the program docker (apt-get install docker-cli)"
        apt_install docker-cli || say "could not install it. Ask for \`apt-get install docker-cli\`"
    fi
}

has_engine() { # a daemon that answers, one that could be started, or podman
    docker version >/dev/null 2>&1 || command -v podman >/dev/null ||
        { [ "$(id -u)" = 0 ] && command -v dockerd >/dev/null; }
}

install_containers() {
    missing=
    has_engine || missing=docker.io
    command -v mmdebstrap >/dev/null || missing="$missing mmdebstrap"
    if [ -n "$missing" ]; then
        say "installing from Debian's packages, for container images: $missing"
        # shellcheck disable=SC2086  # a list of words
        without_services apt_install $missing ||
            say "could not install $missing. Ask for docker or podman" \
            "(\`apt-get install docker.io\`, \`dnf install podman\`); images that were built elsewhere" \
            "run without (docs/containers.md)"
    fi
    install_docker_program
    if ! command -v apptainer >/dev/null && ! command -v singularity >/dev/null &&
        ! .tools/apptainer/bin/apptainer --version >/dev/null 2>&1; then
        say "installing apptainer into .tools/apptainer (105 MB, no root, the system is not touched)"
        requirements/apptainer.sh || say "no apptainer: that runtime will be left out"
    fi
}

case ${1:-} in
run | extra | dev) install_set "$1" ;;
fio) install_fio ;;
test-tools) install_test_tools ;;
caffe-pytest) install_caffe_pytest ;;
test-host) prepare_host ;;
make) command -v make >/dev/null || apt_install make ;;
containers) install_containers ;;
*) die "usage: requirements/install.sh" \
    "run|extra|dev|fio|test-tools|caffe-pytest|test-host|make|containers" ;;
esac
