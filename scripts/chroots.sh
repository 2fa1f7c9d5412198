# shellcheck shell=bash
# Sourced by the scripts: bare systems of Debian and Ubuntu in folders, for root, by debootstrap.
# They use the machine's own mirror of Debian, its settings for apt's network, its proxy variables
# and its own certificates.

# chroots_need_root SCRIPT: ends the script where it cannot make systems.
chroots_need_root() {
    if [ "$(id -u)" -ne 0 ]; then
        printf '%s: you are %s; only root makes systems in folders (chroot, mount). Use sudo\n' \
            "$1" "$(id -un)" >&2
        exit 1
    fi
    if ! command -v debootstrap > /dev/null 2>&1; then
        printf '%s: debootstrap is not installed (Debian: debootstrap)\n' "$1" >&2
        exit 1
    fi
}

# The mirror of a release: MIRROR_DEBIAN or MIRROR_UBUNTU, or where this machine has its packages.
mirror_of() {
    local origin=Debian given=${MIRROR_DEBIAN:-} found
    case $1 in
    noble) origin=Ubuntu given=${MIRROR_UBUNTU:-} ;;
    esac
    found=${given:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
        "Label: $origin" 2> /dev/null | head -n 1)}
    if [ -z "$found" ]; then
        printf 'no mirror of %s: this machine has none for apt; set MIRROR_%s to its address\n' \
            "$1" "${origin^^}" >&2
        return 1
    fi
    printf '%s\n' "$found"
}

# inside FOLDER COMMAND...: in the system, whose mounts are gone when the command ends.
inside() {
    local root=$1
    shift
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount --pid --fork --kill-child bash -c '
        root=$1
        shift
        mount --make-rprivate / && mount -t proc proc "$root/proc" &&
            mount --rbind /dev "$root/dev" && mount -t tmpfs tmpfs "$root/tmp" &&
            exec chroot "$root" "$@"' inside "$root" "$@"
}

# make_chroot NAME FOLDER PACKAGE...: a bare system that reaches what this machine reaches.
make_chroot() {
    local name=$1 root=$2 extra=() script=() mirror
    shift 2
    mirror=$(mirror_of "$name") || return 1
    [ "$name" != noble ] || extra=("--components=main,universe")
    # An older debootstrap does not know newer names; all of Ubuntu's are made alike.
    [ "$name" != noble ] || [ -e /usr/share/debootstrap/scripts/noble ] || script=(gutsy)
    rm -rf "$root"
    debootstrap --variant=minbase --include=ca-certificates "${extra[@]}" "$name" "$root" \
        "$mirror" "${script[@]}" || return 1
    cp /etc/resolv.conf "$root/etc/resolv.conf" 2> /dev/null
    printf '%s\n' '127.0.0.1 localhost' "127.0.1.1 $(hostname)" '::1 localhost ip6-localhost' \
        > "$root/etc/hosts"
    # Nobody needs it after a crash.
    echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/90machine"
    # A script sits at no terminal to say yes.
    {
        apt-config dump 2> /dev/null | grep -E '^Acquire::(http|https|Retries)\b'
        printf 'APT::Get::Assume-Yes "true";\n'
    } > "$root/etc/apt/apt.conf.d/90machine"
    if compgen -G '/usr/local/share/ca-certificates/*.crt' > /dev/null; then
        cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates"
        inside "$root" update-ca-certificates || return 1
    fi
    inside "$root" apt-get update -q &&
        inside "$root" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q --no-install-recommends "$@"
}

# What a login there keeps of the machine's environment: how to reach the network.
network_variables=http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY

# as_user ROOT USER COMMAND LINE: in a new login of the user, who knows nothing else of the machine.
as_user() {
    inside "$1" env "DEBIAN_FRONTEND=noninteractive" \
        su - "$2" -w "$network_variables,DEBIAN_FRONTEND" -c "$3"
}
