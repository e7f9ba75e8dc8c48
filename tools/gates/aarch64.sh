#!/usr/bin/env bash
# Builds for aarch64 with Debian's cross compiler and runs the tests under user-mode emulation. Called
# by tools/gate.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'TEXT'
Usage: tools/gate aarch64 [--minutes M] [--only REGEX] [--target NAME]... [--no-apt] [--build DIRECTORY]

Builds the tests of the core, flows, kernels, devices of host objects, wire, transport, network, launchers and runtime
for aarch64 in DIRECTORY (default: build-gate-aarch64) and runs them by qemu-aarch64-static at the lowest priority.
Build and tests together end after M minutes (default 60). Says what it installs before it does (a cross compiler and
the emulator); the target's libraries are Debian's packages for arm64, unpacked into DIRECTORY/sysroot, and nothing of
the system is changed for them. Prints how many tests have passed, and by name what did not run there, with the reason.
QEMU_PAGESIZE=65536 shows the tests pages of 64 KiB.

  --only    tests whose names match
  --target  builds this only, for --only; may be repeated
  --no-apt  install and unpack nothing; stop if something is missing

Exit code: 0 nothing failed, 1 a test failed or time ran out (DIRECTORY/gate.log), 2 wrong usage, or no build.
TEXT
}

readonly ALL_TARGETS=(test_core test_device test_fake_gpu test_flow test_kernels test_optim test_wire test_exchange test_net
  test_machine test_launch test_runtime)
readonly ROOMS='core|device|flow|kernels|wire|transport|net|machine|launch|runtime'

# Tests that cannot run under qemu-user 7.2 or are excluded there: a pattern of whole names, the reason. ctest's names of
# parametrised tests end at the first blank.
NOT_EMULATED='
core.ResultDeathTest.*: starts its own program again, and without binfmt_misc the kernel cannot execute one of aarch64
kernels.InstructionSet.Follows.*: starts its own program again, and without binfmt_misc the kernel cannot execute one of aarch64
machine.Here.AMaskSetBeforeTheFirstCallLimitsIt: starts its own program again, and without binfmt_misc the kernel cannot execute one of aarch64
core.Thread.TakesNoSignalsAndLeavesTheCallersMask: the emulator keeps the last real-time signal for itself
device.Segment.IsNotInAForkedChild: the emulator ignores MADV_DONTFORK
net.Secrets.AreInNoCoreDumpAndNoForkedChild: the emulator ignores MADV_DONTDUMP and MADV_WIPEONFORK
device.FakeGpu.RegisteredMemoryHasAnAddressForDevices: the emulator makes no second mapping by mremap
net.NetLine.SilentConnectionsAreBoundedAndBlockNoRank: the emulator has no TCP_INFO, which knows round trips
wire.Frames.RandomBytesAreRefusedQuickly: bounds a time that an emulator on a busy processor exceeds
runtime[.](.*_pull_processes|All/Reductions[.]EveryTypeByEveryOp/processes): the emulator has no process_vm_readv
runtime[.](small_pages|streamed|hosts3)[.].*: the flows of runtime.* with other sizes and hosts, left out for their time'

# Puts the target's libraries into $1: Debian's arm64 packages of the libraries that setup.sh names, with all dependencies.
# Uses apt with separate lists and an empty set of installed packages; no package's scripts run.
unpack_sysroot() {
  local sysroot=$1 state=$1.apt sources=/etc/apt/sources.list.d/debian.sources packages package apt link
  mapfile -t packages < <(printf '%s\n' libc6-dev "${PACKAGES[@]}" "${TEST_PACKAGES[@]}" |
    grep -E '^(lib|nlohmann).*-dev$' | grep -vE '^lib(ucx|benchmark)-dev$')
  [[ $(cat "$sysroot/.packages" 2>/dev/null) != "${packages[*]}" ]] || return 0
  [[ $use_apt == yes ]] || die "$sysroot is not there, and --no-apt was given"
  say "unpacking into $sysroot, for arm64: ${packages[*]}"
  [[ -f $sources ]] || sources=/etc/apt/sources.list
  rm -rf "$sysroot" "$state"
  mkdir -p "$sysroot/usr/lib" "$state"/{state/lists/partial,cache/archives/partial}
  : >"$state/status"
  apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=
    -o APT::Install-Recommends=0 -o Dir::State="$state/state" -o Dir::State::status="$state/status"
    -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$sources" -o Dir::Etc::sourceparts=/dev/null)
  "${apt[@]}" update
  "${apt[@]}" install -y --download-only "${packages[@]}"
  for package in "$state"/cache/archives/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  # Absolute links are rewritten to lead into the sysroot.
  find "$sysroot" -type l -lname '/*' | while read -r link; do
    ln -sfnr "$sysroot$(readlink "$link")" "$link"
  done
  rm -rf "$state"
  echo "${packages[*]}" >"$sysroot/.packages"
}

main() {
  local minutes=60 only=. build=build-gate-aarch64 targets=() end launcher=() lowest=(nice -n 19) code=0 log
  use_apt=yes
  while (($#)); do
    case $1 in
      --minutes) minutes=${2:-}; shift 2 || die "--minutes needs a number" ;;
      --only) only=${2:-}; shift 2 || die "--only needs a pattern" ;;
      --target) targets+=("${2:-}"); shift 2 || die "--target needs a name" ;;
      --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
      --no-apt) use_apt=no; shift ;;
      -h | --help) usage; return ;;
      *) die "unknown option $1; see --help" ;;
    esac
  done
  check_number --minutes "$minutes" 1 1440
  [[ -n $build && -n $only ]] || die "--build and --only need a value"
  ((${#targets[@]})) || targets=("${ALL_TARGETS[@]}")
  install_packages cmake ninja-build pkg-config python3 g++-aarch64-linux-gnu qemu-user-static
  mkdir -p "$build"
  build=$(cd "$build" && pwd) log=$build/gate.log
  unpack_sysroot "$build/sysroot"
  end=$((SECONDS + minutes * 60))
  if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi

  say "building in $build"
  cmake -S . -B "$build" -G Ninja --toolchain "$PWD/tools/gates/aarch64.cmake" -DOURO_SYSROOT="$build/sysroot" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1" -DOURO_TESTS=ON -DOURO_CUDA=off \
    -DOURO_UCX=off -DOURO_PYTHON=off -DOURO_BENCH=OFF -Wno-dev "${launcher[@]}" >"$build/configure.log" 2>&1 ||
    { tail -20 "$build/configure.log" >&2; die "cannot configure $build"; }
  timeout -k 10 $((end > SECONDS ? end - SECONDS : 1)) "${lowest[@]}" cmake --build "$build" -j 2 --target "${targets[@]}" ||
    die "$build was not built, or not within $minutes minutes"

  say "testing by $(qemu-aarch64-static --version | head -1)"
  # Prints "NUMBER NAME" of the tests of these rooms; ctest takes only one pattern, so it gets numbers below.
  list() {
    (cd "$build" && ctest -N -R "$only" "$@") |
      sed -nE "/_NOT_BUILT$/d; s/^ *Test *#([0-9]+): ([^ ]*).*/\1 \2/p" | grep -E "^[0-9]+ ($ROOMS)\." || true
  }
  local line pattern left
  list >"$build/all.txt"
  while IFS= read -r line; do
    pattern=${line%%: *}
    [[ -z $line ]] || awk -v pattern="^($pattern)\$" -v why="${line#*: }" '$2 ~ pattern { print $2 ": " why }' "$build/all.txt"
  done <<<"$NOT_EMULATED" >"$build/not-run.txt"
  list -L '^timed$' | sed -E 's/^[0-9]+ (.*)/\1: promises a time that an emulator does not keep/' >>"$build/not-run.txt"
  left=$(awk -F ': ' 'FILENAME == ARGV[1] { not[$1]; next } { split($0, f, " ") } !(f[2] in not) { print f[1] }' \
    "$build/not-run.txt" "$build/all.txt" | paste -sd,)
  [[ -n $left ]] || die "no test has such a name"
  (cd "$build" && timeout -k 30 $((end > SECONDS ? end - SECONDS : 1)) "${lowest[@]}" \
    ctest -j 2 --timeout 900 --output-on-failure -I "0,0,0,$left") >"$log" 2>&1 || code=1
  # Each test that was skipped, as a whole or in part, with the first line that gives the reason.
  awk '/^[0-9]+\/[0-9]+ Test: / { test = $3; why = "" }
       why == "" && /: Skipped$/ { getline; why = $0 }
       /^"[^"]*" end time/ && why != "" { print test ": " why; why = "" }' \
    "$build/Testing/Temporary/LastTest.log" >>"$build/not-run.txt" || true

  printf '\n%s tests did not run under emulation:\n' "$(wc -l <"$build/not-run.txt")"
  sort -u "$build/not-run.txt" | awk '/: this processor has no / { ++wide; next } { print "  " $0 }
    END { if (wide) print "  " wide " tests of the loops for avx2 and avx512: they are those of x86-64" }'
  printf '\n%s tests passed under emulation\n' "$(grep -c ' Passed ' "$log" || true)"
  sed -n '/tests passed/p; /The following tests FAILED/,$p' "$log"
  grep -q 'tests passed' "$log" || { echo "the tests did not end within $minutes minutes: $log"; code=1; }
  return $code
}

main "$@"; exit
