# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step ncu.

# Counters of kernels whose launches do not wait for each other: ncu runs one kernel at a time, several times.
ncu_step() {
  local command
  if [[ -n ${OURO_FAKE_GPUS:-} ]]; then not_run "ncu" "a fake GPU runs no device code"; return; fi
  find_tool ncu
  if [[ -z $command ]]; then not_run "ncu" "there is none here"; return; fi
  ! program bench_gpu_optimiser || profile "optimisers" update 8 "$here/bin/bench_gpu_optimiser" --quick
  profile "all_reduce, 2 ranks" fused 3 "$here/bin/ouro-perf" all_reduce --device cuda -t 2 -b 64M -e 64M -n 2 -w 1 -c 0 -T 45
}

profile() { # NAME KERNELS LAUNCHES PROGRAM ARGUMENT...
  local name=$1 kernels=$2 launches=$3 log="ncu-$2" code=0 kernel text
  shift 3
  local metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
  metrics+=,launch__registers_per_thread,sm__warps_active.avg.pct_of_peak_sustained_active
  metrics+=,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio
  metrics+=,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio
  # The clocks are not changed: the machine may be shared.
  attempt "$log" 60 "$command" --clock-control none --csv --metrics "$metrics" -k "regex:$kernels" -c "$launches" "$@" || code=$?
  out_of_time $code "ncu, $name" && return
  if grep -qE 'ERR_NVGPUCTRPERM|LibraryNotLoaded|Failed to initialize the profiler' "$out/logs/$log.log"; then
    not_run "ncu, $name" "it may not read the counters here"
    return
  fi
  local seen=0
  # shellcheck disable=SC2094  # errors are appended after the log has been read
  while IFS='|' read -r kernel text; do
    seen=1
    row "ncu: $kernel" 1 1 0 "$text" "-"
  done < <(python3 "$here/gpu/ncu_rows.py" "$out/logs/$log.log" 2>>"$out/logs/$log.log")
  ((seen == 1)) || { failed=1; row "ncu, $name" 1 0 0 "$(reason $code "$log")" "-"; }
}
