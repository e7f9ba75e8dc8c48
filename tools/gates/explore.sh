#!/usr/bin/env bash
# Explores the protocols of shared memory (docs/design/exploration.md). Called by tools/gate explore; see its --help.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

minutes=1 build=build seed=1
jobs=$(nproc)
while (($#)); do
  case $1 in
    --minutes) minutes=${2:-}; shift 2 || die "--minutes needs a number" ;;
    --jobs) jobs=${2:-}; shift 2 || die "--jobs needs a number" ;;
    --seed) seed=${2:-}; shift 2 || die "--seed needs a number" ;;
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
check_number --minutes "$minutes" 1 1440
check_number --jobs "$jobs" 1 256
[[ $seed =~ ^[0-9]{1,9}$ ]] || die "--seed takes a number below 10^9"
[[ -n $build ]] || die "--build needs a directory"
lowest=(nice -n 19 chrt --idle 0)
configure_host_build "$build"
"${lowest[@]}" cmake --build "$build" -j 2 --target explore

code=0 pids=()
rm -f "$build"/explore_*.log
"${lowest[@]}" "$build/bin/explore" litmus || code=1
for ((job = 0; job < jobs; ++job)); do
  # Only the first process searches exhaustively and plants faults; the others draw random executions.
  what=(protocols --minutes "$minutes" --seed $(((seed + job) * 1000003)))
  ((job == 0)) || what+=(--random)
  "${lowest[@]}" timeout -k 10 $((minutes * 60 + 1800)) "$build/bin/explore" "${what[@]}" \
    >"$build/explore_$job.log" 2>&1 &
  pids+=($!)
done
for job in "${!pids[@]}"; do
  wait "${pids[job]}" || { code=1; printf 'FOUND SOMETHING: %s\n' "$build/explore_$job.log"; }
  cat "$build/explore_$job.log"
done
printf '%s executions in all, %s processes, %s minutes\n' \
  "$(awk '/^[0-9]+ executions$/ {sum += $1} END {printf "%d", sum}' "$build"/explore_*.log)" "$jobs" "$minutes"
exit $code
