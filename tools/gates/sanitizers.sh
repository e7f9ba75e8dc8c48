#!/usr/bin/env bash
# Runs the whole suite under a sanitizer: sanitizers.sh asan|tsan [OPTION]... Called by tools/gate; see its --help.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Tests that do not run under a sanitizer: a pattern of names, the sanitizers, the reason. Tests with the label `timed` do not
# run there either. Other tests that cannot run there are skipped by their own code, which prints the reason.
NOT_SANITIZED='^checks\.|asan tsan|reads the source and runs none of it
^kernels\.isa_symbols$|asan tsan|reads the symbols of an ordinary build; a sanitizer adds its own
OutOfDescriptors|asan|UndefinedBehaviorSanitizer checks an object through a pipe, and takes it for a wrong one where there are no descriptors
Misuse\.ValuesOutOfTheirRange$|Memory\.SuspendAndStatistics$|asan|passes values that an enumeration has no name for, as C may; UndefinedBehaviorSanitizer ends that
^cuda\.bundle$|asan tsan|the bundle for a machine with a GPU is an ordinary build'

kind=$1 minutes=240 only=. build='' targets=()
shift
while (($#)); do
  case $1 in
    --minutes) minutes=${2:-}; shift 2 || die "--minutes needs a number" ;;
    --only) only=${2:-}; shift 2 || die "--only needs a pattern" ;;
    --target) targets+=("${2:-}"); shift 2 || die "--target needs a name" ;;
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
check_number --minutes "$minutes" 1 1440
build=${build:-build-gate-$kind}
sanitizers=address,undefined flags='' end=$((SECONDS + minutes * 60)) lowest=(nice -n 19) launcher=()
if [[ $kind == tsan ]]; then sanitizers=thread flags=-Wno-tsan; fi  # Asio has fences, which it does not follow
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
# -O1 gives readable stacks in half of the time. Rooms are compiled as units, since this gate does not check includes.
mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
  -DOURO_SANITIZE=$sanitizers -DOURO_TESTS=ON -DOURO_CUDA=off -DOURO_BENCH=OFF -Wno-dev "${launcher[@]}" \
  >"$build/configure.log" 2>&1 || { tail -20 "$build/configure.log" >&2; die "cannot configure $build"; }
timeout -k 10 $((end - SECONDS)) "${lowest[@]}" cmake --build "$build" -j 2 ${targets[@]:+--target "${targets[@]}"} ||
  die "$build was not built, or not within $minutes minutes"

# ThreadSanitizer of GCC 12 supports the usual address layout only, so randomisation is off. UCX's memory hooks do not work
# with it.
fixed=()
if [[ $kind == tsan ]] && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
export UCX_MEM_EVENTS=n UCX_MEM_MMAP_HOOK_MODE=none TESTS_TIMEOUT=900
export ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
# A worker that UCX leaks (docs/limits.md) reads a lock that libucs destroys as the process ends, and keeps memory that
# libucs has allocated. No code of ouro does either.
echo race:pthread_rwlock_destroy >"$build/not-ours.txt"
echo leak:ucs_calloc >"$build/leaks-not-ours.txt"
absolute=$(realpath "$build")
export TSAN_OPTIONS=second_deadlock_stack=1:suppressions=$absolute/not-ours.txt:${TSAN_OPTIONS:-}
export LSAN_OPTIONS=print_suppressions=0:suppressions=$absolute/leaks-not-ours.txt:${LSAN_OPTIONS:-}
leave='' code=0 log=$build/gate.log
all=$(cd "$build" && ctest -N -R "$only" | sed -n 's/^ *Test *#[0-9]*: \([^ ]*\).*/\1/p')
{
  while IFS='|' read -r pattern where reason; do
    [[ " $where " == *" $kind "* ]] || continue
    leave+="${leave:+|}$pattern"
    grep -E "$pattern" <<<"$all" | sed "s/\$/: $reason/" || true
  done <<<"$NOT_SANITIZED"
  (cd "$build" && ctest -N -R "$only" -L '^timed$' | sed -n 's/^ *Test *#[0-9]*: \([^ ]*\).*/\1/p') |
    sed 's/$/: promises a time that no sanitizer keeps/'
} >"$build/not-run.txt"
(cd "$build" && timeout -k 30 $((end > SECONDS ? end - SECONDS : 1)) "${lowest[@]}" "${fixed[@]}" \
  ctest -j 2 --timeout 900 --output-on-failure -R "$only" -E "$leave" -LE '^timed$') >"$log" 2>&1 || code=1
# Each test that was skipped, as a whole or in part, with the first line that gives the reason.
awk '/^[0-9]+\/[0-9]+ Test: / { test = $3; why = "" }
     why == "" && /: Skipped$/ { getline; why = $0 }
     why == "" && /^SKIP|cannot be done here|\.\.\. skipped/ { why = $0 }
     /^"[^"]*" end time/ && why != "" { print test ": " why; why = "" }' \
  "$build/Testing/Temporary/LastTest.log" >>"$build/not-run.txt" || true

printf '\n%s tests did not run under %s:\n' "$(wc -l <"$build/not-run.txt")" "$kind"
sort -u "$build/not-run.txt" | sed 's/^/  /'
printf '\n'
sed -n '/tests passed/p; /The following tests FAILED/,$p' "$log"
grep -q 'tests passed' "$log" || { echo "the suite did not end within $minutes minutes: $log"; code=1; }
exit $code
