# shellcheck shell=bash
# Functions that the gates share. Sourced by each of them, from bash. Paths are relative to the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

die() { printf 'gate: %s\n' "$*" >&2; exit 2; }

# Refuses a value of an option that is no number within the limits.
check_number() { # OPTION VALUE LEAST MOST
  if [[ $2 =~ ^[0-9]{1,9}$ ]] && (($2 >= $3 && $2 <= $4)); then return; fi
  die "$1 takes $3 to $4"
}

# Configures a build directory without CUDA, unless it is configured already.
configure_host_build() { # BUILD
  mkdir -p "$1"
  [[ ! -f $1/CMakeCache.txt ]] || return 0
  cmake -S . -B "$1" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DOURO_CUDA=off -DOURO_BENCH=OFF -Wno-dev >"$1/configure.log" 2>&1 ||
    { tail -20 "$1/configure.log" >&2; die "cannot configure $1"; }
}
