#!/usr/bin/env bash
# Runs the simulation of jobs of several hosts (docs/design/simulation.md). Called by tools/gate simulate; see its --help.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seeds=1000 first=1 build=build
jobs=$(nproc)
while (($#)); do
  case $1 in
    --seeds) seeds=${2:-}; shift 2 || die "--seeds needs a number" ;;
    --first) first=${2:-}; shift 2 || die "--first needs a number" ;;
    --jobs) jobs=${2:-}; shift 2 || die "--jobs needs a number" ;;
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
check_number --seeds "$seeds" 1 999999999
[[ $first =~ ^[0-9]{1,15}$ ]] || die "--first takes a number below 10^15"
check_number --jobs "$jobs" 1 256
[[ -n $build ]] || die "--build needs a directory"
lowest=(nice -n 19)
configure_host_build "$build"
"${lowest[@]}" cmake --build "$build" -j 2 --target simulate simulate_faults

code=0 pids=() share=$(((seeds + jobs - 1) / jobs))
rm -f "$build"/simulate_*.log
for ((job = 0; job < jobs && job * share < seeds; ++job)); do
  "${lowest[@]}" "$build/bin/simulate" --first $((first + job * share)) \
    --seeds $((job * share + share <= seeds ? share : seeds - job * share)) >"$build/simulate_$job.log" 2>&1 &
  pids+=($!)
done
for job in "${!pids[@]}"; do
  wait "${pids[job]}" || { code=1; printf 'FOUND SOMETHING: %s\n' "$build/simulate_$job.log"; }
  cat "$build/simulate_$job.log"
done
"${lowest[@]}" "$build/bin/simulate_faults" --faults --seeds 3000 || code=1
exit $code
