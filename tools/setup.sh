# shellcheck shell=bash disable=SC2034
# Code that quickstart and test share: packages, options, configuration. Sourced by both, from bash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BUILD=build
readonly PACKAGES=(
  g++ cmake ninja-build pkg-config
  libfmt-dev nlohmann-json3-dev libcli11-dev libhwloc-dev libboost-dev libssl-dev libxxhash-dev libucx-dev
)
readonly TEST_PACKAGES=(libgtest-dev libgmock-dev libbenchmark-dev python3 iproute2 openmpi-bin mpich clang-format-14 doxygen)

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 2; }

# Sets use_apt (yes|no) and cuda (auto|on|off).
parse_options() {
  use_apt=yes
  cuda=auto
  for option in "$@"; do
    case $option in
      --no-apt) use_apt=no ;;
      --cuda=auto | --cuda=on | --cuda=off) cuda=${option#--cuda=} ;;
      -h | --help) usage; exit 0 ;;
      *) die "unknown option $option; see --help" ;;
    esac
  done
}

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# Installs those of the given packages that are missing, after printing their names.
install_packages() {
  local missing=() package apt=(apt-get)
  command -v dpkg-query >/dev/null || { say "no dpkg here: taking the build dependencies for granted"; return; }
  for package in "$@"; do is_installed "$package" || missing+=("$package"); done
  ((${#missing[@]})) || return 0
  [[ $use_apt == yes ]] || die "missing packages, and --no-apt was given: apt-get install ${missing[*]}"
  say "installing by apt-get: ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "not root and no sudo: run as root: apt-get install ${missing[*]}"
    apt=(sudo apt-get)
  fi
  "${apt[@]}" update -qq
  DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y -qq --no-install-recommends "${missing[@]}"
}

has_cuda_driver() { [[ -e /dev/nvidiactl ]] || [[ -e /dev/dxg ]]; }

# configure OPTION...: configures the default preset with the given cache entries, with ccache if it is installed.
configure() {
  local launcher=()
  if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  if [[ $cuda != off ]] && ! command -v nvcc >/dev/null && [[ -z ${CUDACXX:-} && -x /usr/local/cuda/bin/nvcc ]]; then
    export CUDACXX=/usr/local/cuda/bin/nvcc
  fi
  cmake --preset default -Wno-dev "${launcher[@]}" "$@"
}

# Prints the number of build jobs: at least two, at most the number of cores, with 1.5 GiB of memory for each.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  local n=$((cores < memory ? cores : memory))
  echo $((n < 2 ? 2 : n))
}
