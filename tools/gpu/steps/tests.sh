# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step tests.
#
# A hanging test is separated from the tests after it: the program continues with those, and the hanging test is run alone,
# first with eager loading of kernels, then under a debugger.

# Prints the last test of a log if the program did not finish it.
under_way() { awk '/^\[ RUN/ { t = $4 } /^\[       OK|^\[  FAILED|^\[  SKIPPED/ { t = "" } END { print t }' "$1"; }

# Runs a test that hung alone, and appends the result to `hangs` of the caller.
examine() { # NAME FILE TEST
  local log=$1-hang-$((++hung)) code=0
  attempt "$log" 20 env CUDA_MODULE_LOADING=EAGER "$2" --gtest_filter="$3" || code=$?
  hangs+="${hangs:+, }$3"
  if ((code == 0)); then hangs+=" (not alone with eager loading)"; return; fi
  if ((code != 124 && code != 137)); then hangs+=" (alone: exit $code)"; return; fi
  local debugger pid
  debugger=$(command -v cuda-gdb || ls /usr/local/cuda/bin/cuda-gdb 2>/dev/null || command -v gdb)
  if [[ -z $debugger ]] || (($(remaining) < 60)); then hangs+=" (also alone)"; return; fi
  LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$2" --gtest_filter="$3" >/dev/null 2>&1 </dev/null &
  pid=$!
  sleep 8
  local questions=(-ex 'thread apply all backtrace')
  [[ $debugger != *cuda-gdb ]] || questions=(-ex 'info cuda kernels' -ex 'info cuda warps' "${questions[@]}")
  timeout -k 5 40 "$debugger" -batch -p "$pid" "${questions[@]}" >"$out/logs/$log-stacks.log" 2>&1 </dev/null
  kill -KILL "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
  hangs+=" (also alone: $log-stacks.log)"
}

# Runs the tests of one program that a filter of gtest names into the log NAME. Ranks that are processes are forked from a
# process that has not used a GPU yet, so each test of such ranks has a process of its own; all others share one, until one of
# them hangs. Sets `hangs` of the caller.
all_tests_of() { # NAME FILE FILTER
  local name=$1 file=$2 some=${3%%-*} not='' code=0 one part=0 own=() hung=0 log worst=0
  [[ $3 != *-* ]] || not=${3#*-}
  local alone='processes|Sharing|GpuMessages|KilledInMid|GraphsReplay'
  [[ -z ${OURO_FAKE_GPUS:-} ]] || alone+='|nvls|Switch|Uneven'  # they make fake GPUs of their own
  if [[ $file == */test_gpu ]]; then
    mapfile -t own < <("$file" --gtest_list_tests --gtest_filter="$3" | awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }' |
      grep -E "$alone")
    if [[ -z ${OURO_FAKE_GPUS:-} ]]; then  # about 5 s each: the step collectives checks the same by ouro-perf
      not+=${not:+:}$(printf '%s\n' "${own[@]}" | grep -E 'GpuCollectives.*processes' | paste -sd:)
      mapfile -t own < <(printf '%s\n' "${own[@]}" | grep -vE 'GpuCollectives.*processes')
    fi
  fi
  not+=${not:+:}$(IFS=:; echo "${own[*]}")
  if [[ $quick == yes ]]; then
    own=("${own[@]:0:2}")
    [[ $some != '*' ]] || case $(basename "$file") in
      test_gpu) some='GpuStreams.*:*all_reduce*_threads' ;;
      # All reductions in all shapes take minutes on a processor that emulates a GPU.
      test_collect_device) some='*Broadcast:*HopWeights:*KernelsLoad*' ;;
    esac
  fi
  : >"$out/logs/$name.log"
  while true; do
    log=$name-$((++part)) code=0
    attempt "$log" "$limit" "$file" --gtest_filter="$some${not:+-$not}" || code=$?
    cat "$out/logs/$log.log" >>"$out/logs/$name.log"
    ((code == 0 || (code == 125 && worst != 0))) || worst=$code
    one=$(under_way "$out/logs/$log.log")
    if ((code != 124 && code != 137)) || [[ -z $one ]] || ((part >= 5)); then break; fi
    not+=$(sed -n 's/^\[ RUN      \] \([^ ]*\).*/:\1/p' "$out/logs/$log.log" | tr -d '\n')
    examine "$name" "$file" "$one"
  done
  # These run one after the other: while processes of other tests use the device, each takes several times as long.
  for one in "${own[@]}"; do
    log=$name-own-$((++part)) code=0
    attempt "$log" 30 "$file" --gtest_filter="$one" || code=$?
    cat "$out/logs/$log.log" >>"$out/logs/$name.log"
    ((code == 0 || (code == 125 && worst != 0))) || worst=$code
    ((code != 124 && code != 137)) || examine "$name" "$file" "$one"
  done
  return $worst
}

# Runs the tests of one program that a filter names, and makes a row of them.
tests_of() { # PROGRAM FILTER ROW
  local code=0 hangs='' log=${3// /-} ran passed skipped
  all_tests_of "$log" "$here/bin/$1" "$2" || code=$?
  ran=$(grep -c '^\[ RUN' "$out/logs/$log.log")
  passed=$(grep -c '^\[       OK' "$out/logs/$log.log")
  skipped=$(grep -c '^\[  SKIPPED \].*(.* ms)$' "$out/logs/$log.log")
  if ((ran == 0)) && out_of_time $code "$3"; then return; fi
  if ((code == 0 || code == 77)); then row "$3" "$ran" "$passed" "$skipped" "" "all"
  elif ((code == 125)); then row "$3" "$ran" "$passed" "$skipped" "the rest not run: no time left" "all"
  else failed=1; row "$3" "$ran" "$passed" "$skipped" "${hangs:+hangs: }${hangs:-$(reason $code "$log")}" "all"; fi
}

# Runs all tests of the bundle but those of the step unseen.
tests_step() {
  local file name filter
  for file in "$here"/bin/test_*; do
    [[ -x $file ]] || { not_run "tests" "none in the bundle"; return; }
    name=$(basename "$file") filter='*'
    [[ $name != test_nccl_gpu || -z $no_runtime ]] || { not_run "$name" "$no_runtime"; continue; }
    [[ $name != test_gpu ]] || filter="*-$UNSEEN"
    tests_of "$name" "$filter" "$name"
  done
}
