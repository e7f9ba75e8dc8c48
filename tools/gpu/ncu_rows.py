#!/usr/bin/env python3
"""Turns the output of `ncu --csv --metrics ...` into one line for each kernel: NAME|FIGURES, the medians of its launches.
Run by gpu-check: ncu_rows.py LOG. Exit code: 0; 1 if the log has no table of metrics."""
import csv
import re
import statistics
import sys

# Metric: the words after its value.
WORDS = {
    "gpu__time_duration.sum": "",  # its unit is in the table
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "% of the memory's peak",
    "launch__registers_per_thread": "registers",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "% of warps active",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": "sectors a load",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio": "sectors a store",
}


def without_parameters(signature):
    """A kernel's name. Arguments of templates have parentheses, too, as (DType)7 and (anonymous namespace) have."""
    end, depth = len(signature.rstrip()), 0
    for i in range(end - 1, -1, -1) if signature.rstrip().endswith(")") else ():
        depth += {")": 1, "(": -1}.get(signature[i], 0)
        if depth == 0:
            end = i
            break
    return re.sub(r"^void ", "", signature[:end]).strip()


def rows(lines):
    """Of {kernel: {metric: ([values], unit)}}, in the order of the table, which other output surrounds."""
    table = [line for line in lines if line.startswith('"')]
    found = {}
    for row in csv.DictReader(table):
        metric = row.get("Metric Name")
        if metric not in WORDS:
            continue
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except ValueError:  # n/a
            continue
        name = without_parameters(row["Kernel Name"])
        values, _ = found.setdefault(name, {}).setdefault(metric, ([], row["Metric Unit"]))
        values.append(value)
    return found


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        found = rows(log)
    for kernel, metrics in found.items():
        texts = []
        for metric, words in WORDS.items():
            if metric in metrics:
                values, unit = metrics[metric]
                texts.append(f"{statistics.median(values):.4g} {words or unit}")
        print(f"{kernel.replace('|', '/')}|{', '.join(texts)}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
