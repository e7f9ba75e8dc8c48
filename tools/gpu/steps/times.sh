# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step times.

# Large collectives, whose time is that of memory, and messages.
times_step() {
  local n kind sizes=(-b 256M -e 256M -n 20 -w 5) counts=(2 4 8)
  [[ $quick == no ]] || counts=(2) sizes=(-b 64K -e 64K -n 20 -w 5)
  for n in "${counts[@]}"; do
    for kind in all_reduce broadcast all_gather; do
      perf "$kind, $n threads" "time-$kind-$n" ouro-perf "$kind" -t "$n" "${sizes[@]}" -z 2 -c 1
    done
  done
  perf "sendrecv, 2 threads" time-sendrecv-threads ouro-perf sendrecv -t 2 -b 8 -e 64K -f 8192 -n 50 -w 10 -z 3 -c 1
  perf "sendrecv, 2 processes" time-sendrecv-processes ouro-perf sendrecv --ranks 2 -b 8 -e 64K -f 8192 -n 50 -w 10 -z 3 -c 1
}
