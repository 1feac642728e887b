#!/usr/bin/env bash
# Set-up of a fresh machine: system packages, a virtual environment, CPU torch, fabwatch itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}" VENV="${VENV:-.venv}" TORCH="${TORCH:-2.13.0}"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

command -v "$PYTHON" >/dev/null || die "no $PYTHON here; install Python 3.10 to 3.13, or say make PYTHON=/path/to/python"
"$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2])' ||
    die "$PYTHON is $("$PYTHON" -V 2>&1); fabwatch needs 3.10 or newer (make PYTHON=/path/to/python)"

# ---- system packages: what is missing, and what for
need=()
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || need+=("python3-venv") # the environment below
command -v ip >/dev/null || need+=("iproute2")                             # ip and ss collectors
if ((${#need[@]})); then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "apt-get install ${need[*]}"
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${need[@]}"; } >&2 ||
            say "apt-get failed; going on with what is here"
    else
        say "missing: ${need[*]} (as root: apt-get install ${need[*]})"
    fi
fi
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$PYTHON cannot make virtual environments; install python3-venv and try again"

# ---- the environment
[ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import pip' 2>/dev/null ||
    "$PYTHON" -m venv --clear "$VENV"
pip=("$VENV/bin/python" -m pip --disable-pip-version-check)

# ---- torch first: the version the tests are written for; TORCH_INDEX names an index of CPU builds
# (the default wheel for Linux may bring gigabytes of CUDA libraries, which nothing here needs)
if ! "$VENV/bin/python" -c "import importlib.metadata as m, sys
sys.exit(m.version('torch').split('+')[0] != '$TORCH')" 2>/dev/null; then
    say "torch $TORCH"
    "${pip[@]}" install --quiet ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "torch==$TORCH" ||
        die "torch $TORCH could not be installed; install it into $VENV by hand and try again"
fi

say "fabwatch and what its tests need"
"${pip[@]}" install --quiet --editable '.[dev]'
touch "$VENV/.ready"
say "done: $VENV"
