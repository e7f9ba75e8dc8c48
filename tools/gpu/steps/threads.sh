# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step threads.

# The questions of gpu_probe that several threads ask together. No card has answered them.
threads_step() { questions '^(eight-)?threads-'; }
