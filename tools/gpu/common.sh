# shellcheck shell=bash disable=SC2034,SC2154
# Functions that the steps share. Sourced by gpu-check, which declares the variables.

# Prints the seconds that are left: of the budget, and of the step that runs.
remaining() {
  local end=$budget
  ((step_end == 0 || step_end > budget)) || end=$step_end
  echo $((end - SECONDS))
}

program() { [[ -x $here/bin/$1 ]]; }
say() { printf '\n== %s\n' "$*"; }

# Records and prints a row of the table.
row() { # STEP RAN PASSED SKIPPED FIGURE TARGET
  local IFS='|'
  rows+=("$*")
  echo "$*" >>"$out/rows"
  printf '  %s: ran %s, passed %s, skipped %s %s (at %d s)\n' "$1" "$2" "$3" "$4" "$5" "$SECONDS"
}

# Records that the step cannot run here, and why.
not_run() { row "$1" 0 0 - "not run: $2" "${3:--}"; }

# attempt LOG LIMIT PROGRAM ARGUMENT...: runs one of the bundle's programs, with all processes that it starts, for at most
# LIMIT seconds. Returns its exit code; 124: timed out; 125: no time was left for it.
attempt() {
  local log=$out/logs/$1.log limit=$2 left
  shift 2
  left=$(remaining)
  ((left >= 5)) || { echo "no time left" >"$log"; return 125; }
  local cut=no code=0
  ((limit <= left)) || { limit=$left; cut=yes; }
  # Set only for programs of the bundle: a tool of the system would load the bundle's libraries, too.
  timeout -k 5 "$limit" env LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@" \
    >"$log" 2>&1 </dev/null || code=$?
  # If it had less time than planned, a timeout says nothing about it.
  [[ $cut == no ]] || ((code != 124 && code != 137)) || code=125
  return $code
}

# True if no time is left to begin a step; records that.
out_of_time() {
  (($1 == 125)) || return 1
  not_run "$2" "no time left"
}

# Prints the text of a failure in one line.
reason() {
  local code=$1 log=$out/logs/$2.log
  case $code in
    124 | 137) echo "out of time" ;;
    *) echo "exit $code: $(grep -Ev '^#|--help' "$log" | grep . | tail -1 | tr '|' '/' | cut -c1-160)" ;;
  esac
}

# Runs ouro-perf with percentiles; makes a row of each line of its table, both halves of it. `!` marks a mean that says little:
# the halves of the loop differ, or memory of another process was mapped during it.
perf() { # NAME LOG VARIABLE=VALUE... ouro-perf ARGUMENT...
  local name=$1 log=$2 code=0 lines=0 size text variables=()
  shift 2
  while [[ $1 != ouro-perf ]]; do variables+=("$1"); shift; done
  shift
  attempt "$log" 40 env "${variables[@]}" "$here/bin/ouro-perf" "$@" --device cuda -T 20 --csv || code=$?
  out_of_time $code "$name" && return
  while IFS='|' read -r size text; do
    lines=$((lines + 1))
    row "$name, $size B" 1 "$((code == 0))" 0 "$text" "-"
  done < <(awk -F, '
    function side(s) {
      return sprintf("%.1f us (%.1f %.1f %.1f)%s%s", $at[s "_time_us"], $at[s "_min_us"], $at[s "_median_us"], $at[s "_p95_us"],
        $at[s "_halves"] > 1.3 ? sprintf(" halves %.1f!", $at[s "_halves"]) : "", $at[s "_maps"] > 0 ? " maps " $at[s "_maps"] "!" : "")
    }
    /^size,/ { for (i = 1; i <= NF; i++) at[$i] = i }
    /^[0-9]+,/ { print $1 "|" side("out_of_place") ($at["in_place_time_us"] == "" ? "" : "; in place " side("in_place")) }' \
    "$out/logs/$log.log")
  ((code == 0 && lines > 0)) || { failed=1; row "$name" 1 0 0 "$(reason $code "$log")" "-"; }
}

# Counts the rows of a CSV table of ouro-perf, and those that are correct both out of place and in place (sendrecv has no
# in-place form).
right_rows() {
  awk -F, '$1 ~ /^[0-9]+$/ { n++; good += $9 == "0" && ($13 == "0" || $13 == "") } END { print n + 0, good + 0 }' "$1"
}

# Records that one of several cases failed, and why the first one did. Reads and sets variables of its caller.
blame() {
  failed=1
  wrong+="${wrong:+, }$kind"
  why=${why:-" wrong; the first: $(reason "$code" "$1")"}
}

# Sets `command` to the path of a program of CUDA's, or to nothing.
find_tool() {
  command=$(command -v "$1" || ls "/usr/local/cuda/bin/$1" 2>/dev/null || true)
}
