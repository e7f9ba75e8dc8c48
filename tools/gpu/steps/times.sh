# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step times.

# figure threads|processes RANKS COLLECTIVE SIZE TARGET: TARGET is "92%" of the copy bandwidth, "200us", or "-".
figure() {
  local how=$1 n=$2 kind=$3 size=$4 target=$5 ranks=(-t "$2") name=time-$3-$1-$2-$4 us bytes verdict code=0 blocking=2
  [[ $how == threads ]] || ranks=(--ranks "$n")
  [[ $size == *M && $size != 1M ]] || blocking=3  # latency: a wait after each call
  attempt "$name" 40 "$here/bin/ouro-perf" "$kind" --device cuda "${ranks[@]}" -b "$size" -e "$size" -n 20 -w 5 \
    -c 1 -z $blocking -T 20 --csv || code=$?
  out_of_time $code "$kind $size, $n $how" && return
  if ((code != 0)); then
    failed=1
    row "$kind $size, $n $how" 1 0 0 "$(reason $code "$name")" "$target"
    return
  fi
  read -r bytes us < <(awk -F, '$1 ~ /^[0-9]+$/ { print $1, $6 }' "$out/logs/$name.log" | tail -1)
  # The least number of bytes that pass through memory: inputs read once, outputs written once, out of place (all_gather:
  # size is the output).
  verdict=$(awk -v b="$bytes" -v us="$us" -v n="$n" -v kind="$kind" -v copy="${copy_gbs:-0}" \
    -v target="$target" 'BEGIN {
    moved = kind == "broadcast" || kind == "all_gather" ? (1 + n) * b : 2 * n * b
    share = copy > 0 ? 100 * moved / (us * 1000) / copy : 0
    met = target ~ /%$/ ? (copy > 0 && share >= target + 0) : us <= target + 0
    if (copy == 0 && target ~ /%$/) printf "%.1f us; the copy was not timed (step limits)", us
    else printf "%.1f us%s%s", us, (copy > 0 ? sprintf(", %.0f %% of the copy", share) : ""), (target == "-" ? "" : met ? ": met" : ": missed") }')
  row "$kind $size, $n $how" 1 1 0 "$verdict" "$target"
}

# Times collectives beside what a copy on the same device reaches.
times_step() {
  say "times"
  if [[ $quick == yes ]]; then
    figure threads 2 all_reduce 64K -
    figure processes 2 all_reduce 64K -
    return
  fi
  local n how
  for how in threads processes; do
    for n in 8 64M; do figure $how 2 sendrecv $n -; done
  done
  local -A latency=([2]=8us [4]=9us [8]=12us) middle=([2]=10us [4]=12us [8]=15us)
  for n in 2 4 8; do
    figure threads $n all_reduce 8 "${latency[$n]}"
    figure threads $n all_reduce 1M "${middle[$n]}"
    figure threads $n all_reduce 16M 65%
    for kind in all_reduce broadcast all_gather; do figure threads $n $kind 256M 92%; done
    figure processes $n all_reduce 8 200us
    figure processes $n all_reduce 16M 40%
    figure processes $n all_reduce 256M 80%
  done
}
