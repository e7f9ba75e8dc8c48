#!/usr/bin/env bash
# Runs small training jobs under random faults (docs/design/failures.md). Called by tools/gate chaos; see its --help.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

minutes=5 build=build seed=1 kind=both
while (($#)); do
  case $1 in
    --minutes) minutes=${2:-}; shift 2 || die "--minutes needs a number" ;;
    --seed) seed=${2:-}; shift 2 || die "--seed needs a number" ;;
    --kind) kind=${2:-}; shift 2 || die "--kind needs host, hosts or both" ;;
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
check_number --minutes "$minutes" 1 1440
[[ $seed =~ ^[0-9]{1,9}$ ]] || die "--seed takes a number below 10^9"
[[ $kind =~ ^(host|hosts|both)$ ]] || die "--kind takes host, hosts or both"
[[ -n $build ]] || die "--build needs a directory"
configure_host_build "$build"
cmake --build "$build" -j 2 --target chaos_rank tapnet
# The timeout is for a harness that hangs; netlab then removes the namespaces and ends the processes in them.
PYTHONDONTWRITEBYTECODE=1 timeout -k 30 $((minutes * 60 + 600)) python3 tests/system/chaos/chaos.py "$build/bin" \
  --seconds $((minutes * 60)) --seed "$seed" --kind "$kind" --keep "$build/chaos"
