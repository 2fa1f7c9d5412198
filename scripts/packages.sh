# Sourced by the scripts: says what they need, and installs what is missing on Debian and Ubuntu.
# With nothing missing it does nothing at all; the network is touched only to install.

missing=()

# Shows a command, then runs it.
run() {
    printf '+ %s\n' "$*"
    "$@"
}

# need_command NAME PACKAGE...: a program on the path.
need_command() {
    local name=$1
    shift
    command -v "$name" > /dev/null 2>&1 || missing+=("$@")
}

# need_library MODULE PACKAGE: a library that pkg-config knows.
need_library() {
    pkg-config --exists "$1" > /dev/null 2>&1 || missing+=("$2")
}

python_headers='import sysconfig; open(sysconfig.get_path("include") + "/Python.h")'

# Debian's packages are for its own python3, and one ahead of it on the path has none of them.
python3=python3
if command -v apt-get > /dev/null 2>&1 && [ -x /usr/bin/python3 ]; then
    python3=/usr/bin/python3
fi

# need_python PACKAGE PROGRAM: what a line of Python finds.
need_python() {
    "$python3" -c "$2" > /dev/null 2>&1 || missing+=("$1")
}

# Debian has no nanobind, which the Python package is built with: prints a folder with PyPI's. Fails
# without a network.
fetched_nanobind() {
    local folder=$PWD/build-nanobind version=3.1.0
    if [ ! -d "$folder/nanobind-$version.dist-info" ]; then
        rm -rf "$folder"
        "$python3" -m pip download -q --no-deps --timeout 15 -d "$folder" "nanobind==$version" \
            > /dev/null 2>&1 &&
            "$python3" -m zipfile -e "$folder"/nanobind-*.whl "$folder" || return 1
    fi
    printf '%s' "$folder"
}

# What the library, the example and `zero` need where ranks are threads and there is no GPU.
need_example() {
    need_command meson meson
    need_command ninja ninja-build
    need_command gcc gcc libc6-dev
    need_command pkg-config pkg-config
    need_command python3 python3
    need_library openblas libopenblas-dev
    need_library liburing liburing-dev
    need_library libxxhash libxxhash-dev
    need_library jansson libjansson-dev
}

# What a build of everything needs.
need_build() {
    need_example
    need_command mpicc libopenmpi-dev
    need_command mpirun openmpi-bin
    need_python python3-dev "$python_headers"
    need_python python3-numpy 'import numpy'
    need_python python3-pip 'import pip'
    need_command g++ g++
    [ -f /usr/include/dnnl.h ] || missing+=(libdnnl-dev)
}

# What only the whole of scripts/test needs.
need_checks() {
    need_command g++ g++
    need_command cmake cmake
    [ -d /usr/include/torch ] || missing+=(libtorch-dev)
    need_command clang clang
    need_command clang-format clang-format
    need_command doxygen doxygen
    need_command groff groff-base
    need_command mandoc mandoc
    need_command zsh zsh
    need_command fish fish
    [ -f /usr/share/bash-completion/bash_completion ] || missing+=(bash-completion)
    # A second MPI, in whose worlds the same library is tried.
    need_command mpirun.mpich mpich
    need_library mpich libmpich-dev
    need_command musl-gcc musl-tools
    # A test mounts it, which only root may.
    [ "$(id -u)" -ne 0 ] || need_command mkfs.xfs xfsprogs
}

leave_to_user() {
    printf 'missing: %s (names of Debian packages)\n' "${missing[*]}" >&2
    printf 'install them with your own package manager, then run this again\n' >&2
    exit 1
}

# Who sits at a terminal may say no; a script goes on.
ask_first() {
    local answer=''
    printf 'missing, to be installed by apt-get as root: %s\n' "${missing[*]}"
    if [ -t 0 ] && [ -t 1 ]; then
        read -r -p 'Install them? [Y/n] ' answer
    fi
    case $answer in
    '' | [Yy]*) ;;
    *) leave_to_user ;;
    esac
}

install_missing() {
    [ ${#missing[@]} -gt 0 ] || return 0
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        as_root=(sudo)
        # Nobody is there to type a password.
        [ -t 0 ] || as_root=(sudo -n)
    fi
    if ! command -v apt-get > /dev/null 2>&1 ||
        { [ ${#as_root[@]} -gt 0 ] && ! command -v sudo > /dev/null 2>&1; }; then
        leave_to_user
    fi
    ask_first
    run "${as_root[@]}" apt-get update -q
    if ! run "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}" < /dev/null; then
        printf 'could not install: %s\n' "${missing[*]}" >&2
        exit 1
    fi
    missing=()
}

# configure FOLDER COMPILER OPTION...: a build folder with these options, new or as it is there.
configure() {
    local folder=$1 compiler=$2
    shift 2
    if [ -f "$folder/build.ninja" ]; then
        run meson setup --reconfigure "$folder" "$@"
        return
    fi
    [ "$python3" = python3 ] || set -- --native-file scripts/debian-python.ini "$@"
    run env CC="$compiler" meson setup "$folder" "$@"
}

example_options=(--buildtype=release -Ddebug=true -Dtests=disabled -Dtools=enabled)
# In full, also where the folder has been the demo's.
optimised_options=(--buildtype=release -Ddebug=true -Dwerror=true -Dmpi=enabled
    -Dtests=enabled -Dtools=enabled -Dexamples=enabled)

jobs=$(nproc 2> /dev/null || echo 2)
