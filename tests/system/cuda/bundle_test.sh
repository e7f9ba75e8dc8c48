#!/usr/bin/env bash
# Packs a bundle from a build and runs its gpu-check on an emulated GPU. Run by ctest: bundle_test.sh SOURCE BUILD.
set -euo pipefail
source=$1 build=$2
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

fail() { echo "bundle_test: $*" >&2; exit 1; }
expect() { # CODE PATTERN COMMAND...
  local code=$1 pattern=$2 got=0
  shift 2
  "$@" >output 2>&1 </dev/null || got=$?
  if ((got != code)) || ! grep -qE "$pattern" output; then
    cat output
    fail "$*: expected exit $code and \"$pattern\", got $got"
  fi
}

expect 2 "not a build directory" "$source/tools/gpu-bundle" "$place"
expect 2 "unknown option" "$source/tools/gpu-bundle" --nonsense
expect 0 "left out, the machine's own are used: .*libc\.so\.6 .*libcuda" "$source/tools/gpu-bundle" --fake --out . "$build"
bundle=$(echo ouro-gpu-*/)
[[ -d $bundle ]] || fail "no bundle"
for library in "$bundle"lib/*; do
  [[ $(basename "$library") =~ ^(libc|libm|ld-linux.*|libcuda)\.so ]] && fail "$library must be the machine's own"
done
[[ -e ${bundle}lib/libstdc++.so.6 ]] || fail "libstdc++ is missing"

# Unpacks the tar file in another place, as on another machine.
mkdir elsewhere
tar -C elsewhere -xzf ouro-gpu-*.tar.gz
rm -rf "$bundle"
check=elsewhere/${bundle}gpu-check
expect 2 "unknown option" "$check" --nonsense
expect 2 "no step nonsense" "$check" --only probe,nonsense
expect 2 "60 seconds or more" "$check" --budget 5
# The plan is in the order in which the steps run, and runs nothing.
expect 0 "budget: 15.0 minutes" "$check" --plan --budget 900 --out planned
[[ ! -e planned ]] || fail "--plan made a folder"
[[ $(awk '/^[a-z-]+ +[0-9]/ { print $1 }' output | head -4 | paste -sd ' ') == "threads floor small large" ]] || fail "$(cat output)"
awk '/^[a-z-]+ +[0-9]/ { if ($3 > 10) exit; last = $1 } END { exit last != "collectives" }' output ||
  fail "the steps that no card has seen do not fit into ten minutes: $(cat output)"
expect 77 "SKIP: no CUDA device" env -u OURO_FAKE_GPUS CUDA_VISIBLE_DEVICES= "$check" --out none
expect 0 "all that ran passed" env OURO_FAKE_GPUS=1 "$check" --quick --out results
table=$(grep -c '^| ' results/gpu-status.md)  # with its head
(($(wc -l <results/rows) == table - 1)) || fail "rows were not written as they came"
grep -q '^## FAKE' results/gpu-status.md || fail "a fake GPU must be called one"
grep -qE '^\| 2 ranks as threads \| [1-9]' results/gpu-status.md || fail "no collective was checked"
grep -qE '^\| probe: words serve each replay of a graph \| 1 \| 1 ' results/gpu-status.md || fail "nothing was probed"
grep -qE '^\| copy_kernel \| 1 \| 1 \|' results/gpu-status.md || fail "no copy was timed"
head -1 results/rows | grep -q '^probe: streams of three threads wait' || fail "the questions of threads come first: $(head -1 results/rows)"
for path in leader resident; do
  grep -qE "^all_reduce, 2 threads, $path, a wait each, 8 B\|1\|1\|0\|[0-9.]+ us \([0-9. ]+\).*; in place " results/rows ||
    fail "no small call by $path was timed"
  grep -q 'calls .* us, longest ' "results/logs/small-2-$path-3.log" || fail "the calls of $path were not traced"
done
grep -qE '^all_reduce, 2 processes, private, in a row, 1048576 B\|1\|1\|' results/rows || fail "no processes were timed"
grep -qE '^test_gpu unseen\|[1-9]' results/rows || [[ ! -e ${check%/*}/bin/test_gpu ]] || fail "no unseen test ran"
grep -qE '^\| nvls \| 0 \| 0 .*not run: 1 GPUs with multicast objects' results/gpu-status.md || fail "nvls needs two GPUs"
cat results/gpu-status.md

expect 0 "command: gpu-check --quick --only floor" env OURO_FAKE_GPUS=1 "$check" --quick --only floor --out some
grep -q '^| copy_kernel ' some/gpu-status.md || fail "a step that was named did not run"
grep -q '^| probe' some/gpu-status.md && fail "a step that was not named ran"

expect 0 "broadcast, 2 threads, 65536 B: ran 1, passed 1, skipped 0 [0-9.]+ us \(" env OURO_FAKE_GPUS=1 "$check" --quick --only times --out some

# A test that hangs is named and retried alone, and the tests after it run.
mkdir -p mock/bin
cp -r "elsewhere/$bundle"{lib,gpu,gpu-check,bundle.txt} mock/
cp "elsewhere/${bundle}bin/ouro-info" mock/bin/
cat >mock/bin/test_hanging <<'END'
#!/bin/sh
for test in First Second Third; do
  case $1 in *-*$test*) continue ;; *Suite.$test* | *=\**) ;; *) continue ;; esac
  echo "[ RUN      ] Suite.$test"
  [ $test != Second ] || [ "$CUDA_MODULE_LOADING" = EAGER ] || exec sleep 30
  echo "[       OK ] Suite.$test (1 ms)"
done
END
chmod +x mock/bin/test_hanging
expect 1 "test_hanging: ran 3, passed 2, skipped 0 hangs: Suite.Second \(not alone with eager loading\)" \
  env OURO_FAKE_GPUS=1 mock/gpu-check --limit 2 --only tests --out mocked

# Rows that were measured before a program is cut off are there. The limit of a step ends the step, not the plan; the budget
# ends both, and the steps that it leaves no time for are named. The shell counts from SECONDS.
cat >mock/bin/bench_gpu_floor <<'END'
#!/bin/sh
echo "copy_kernel 12.50 GB/s"
exec sleep 100
END
cat >mock/bin/gpu_probe <<'END'
#!/bin/sh
[ "$1" != --list ] || exec echo threads-mock a mock
echo yes
END
chmod +x mock/bin/{bench_gpu_floor,gpu_probe}
expect 0 "probe: ran 0.* not run: the budget of 60 s is used up" env SECONDS=48 OURO_FAKE_GPUS=1 mock/gpu-check --budget 60 \
  --only floor,probe --out late
[[ $(cut -d'|' -f1,2 late/rows | paste -sd ' ') == "copy_kernel|1 bench_gpu_floor|0 probe|0" ]] || fail "$(cat late/rows)"
sed -i 's/^  "floor 50 /  "floor 1 /; s/seconds \* 5/seconds + 6/' mock/gpu-check
expect 0 "bench_gpu_floor: ran 0.* not run: no time left" env OURO_FAKE_GPUS=1 mock/gpu-check --only threads,floor --out cut
[[ $(cut -d'|' -f1,3 cut/rows | paste -sd ' ') == "probe: a mock|1 copy_kernel|1 bench_gpu_floor|0" ]] || fail "$(cat cut/rows)"

# What the tools of a vendor say becomes rows; a report of one of them is a failure.
mkdir -p vendor/bin tools
cp -r "elsewhere/$bundle"{lib,gpu,gpu-check,bundle.txt} vendor/
printf '#!/bin/sh\necho "GPUs 1"; echo "  0: a mock"; echo transports\n' >vendor/bin/ouro-info
printf '#!/bin/sh\nexit 0\n' | tee vendor/bin/ouro-perf >vendor/bin/bench_gpu_optimiser
cat >tools/ncu <<'END'
#!/bin/sh
case $* in *regex:update*) ;; *) echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1 ;; esac
cat <<'TABLE'
==PROF== Profiling "optim_update" - 0: 0%....50%....100% - 4 passes
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void optim_update<(Family)0, (anonymous namespace)::A>(Args)","gpu__time_duration.sum","us","1,200.0"
"1","void optim_update<(Family)0, (anonymous namespace)::A>(Args)","gpu__time_duration.sum","us","1,300.0"
"1","void optim_update<(Family)0, (anonymous namespace)::A>(Args)","launch__registers_per_thread","register/thread","40"
TABLE
END
cat >tools/compute-sanitizer <<'END'
#!/bin/sh
case $* in *racecheck*optimiser*) echo '========= 1 hazard'; exit 99 ;; esac
echo '========= ERROR SUMMARY: 0 errors'
END
chmod +x vendor/bin/* tools/*
expect 1 "something failed" env -u OURO_FAKE_GPUS PATH="$PWD/tools:$PATH" vendor/gpu-check --quick --out vendored
for line in 'ncu: optim_update<\(Family\)0, \(anonymous namespace\)::A> \| 1 \| 1 \| 0 \| 1250 us, 40 registers' 'ncu, all_reduce, 2 ranks \| 0 .*may not read the counters' \
  'racecheck, optimisers \| 1 \| 0 \| 0 \| exit 99: =+ 1 hazard' 'synccheck, resident all_reduce \| 1 \| 1 ' \
  'memcheck, alltoall at odd addresses \| 1 \| 1 ' 'PyTorch \| 0 \| 0 .*not run: '; do
  grep -qE "^\| $line" vendored/gpu-status.md || { cat vendored/gpu-status.md; fail "no row $line"; }
done
