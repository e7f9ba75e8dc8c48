# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step graphs.

# Replays captured graphs.
graphs_step() {
  local kind code ran=0 passed=0 wrong='' why=''
  for kind in all_reduce all_gather broadcast; do
    attempt "graph-$kind" 40 "$here/bin/ouro-perf" "$kind" --device cuda -t 2 -b 1K -e 1M -f 32 -n 2 -w 1 -c 1 -G 3 \
      -T 20 --csv
    code=$?
    out_of_time $code "graphs" && return
    if ((code == 2)); then not_run "graphs" "$(reason 2 "graph-$kind")"; return; fi
    local one good
    read -r one good < <(right_rows "$out/logs/graph-$kind.log")
    ran=$((ran + one)) passed=$((passed + good))
    ((code == 0 && one > 0 && one == good)) || blame "graph-$kind"
  done
  row "graphs, 2 ranks as threads" "$ran" "$passed" 0 "${wrong:-replays are right}$why" "all"
}
