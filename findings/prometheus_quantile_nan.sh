#!/usr/bin/env bash
# One NaN among the samples: PromQL's minimum and its 0-quantile disagree.
#
# Version: promtool of Debian's prometheus 2.42.0+ds-5+deb12u1 (installed; nothing is downloaded).
# Guess: quantile_over_time leaves NaN out, as max_over_time and min_over_time do: the median of NaN, NaN, NaN, 10, 20
#   is 15, or 20.
# Seen: min 10 and max 20, but quantile 0 is NaN and so is the median, because NaN sorts below all numbers; the average
#   is NaN too. So a median of a gauge is gone for the whole window while its maximum looks healthy. A high quantile is
#   the worse case: it is a number, but a lower one than that of the samples which are numbers.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
[[ $(promtool --version 2>&1) == *"version 2.42.0+ds"* ]] || { echo "this needs promtool 2.42.0+ds"; exit 1; }

cat >"$folder/nan.yml" <<'YAML'
rule_files: []
evaluation_interval: 10s
tests:
  - interval: 10s
    input_series:
      - {series: gpu, values: "NaN NaN NaN 10 20"}
    promql_expr_test:
      - {expr: "max_over_time(gpu[50s])", eval_time: 40s, exp_samples: [{labels: "{}", value: 20}]}
      - {expr: "min_over_time(gpu[50s])", eval_time: 40s, exp_samples: [{labels: "{}", value: 10}]}
      # promtool cannot expect NaN; what is not equal to itself is.
      - {expr: "count(quantile_over_time(0, gpu[50s]) != quantile_over_time(0, gpu[50s]))", eval_time: 40s,
         exp_samples: [{labels: "{}", value: 1}]}
      - {expr: "count(quantile_over_time(0.5, gpu[50s]) != quantile_over_time(0.5, gpu[50s]))", eval_time: 40s,
         exp_samples: [{labels: "{}", value: 1}]}
      - {expr: "count(avg_over_time(gpu[50s]) != avg_over_time(gpu[50s]))", eval_time: 40s,
         exp_samples: [{labels: "{}", value: 1}]}
      - {expr: "quantile_over_time(0.75, gpu[50s])", eval_time: 40s, exp_samples: [{labels: "{}", value: 10}]}
YAML

if promtool test rules "$folder/nan.yml"; then
    echo "min 10, max 20; quantile 0, median and average NaN; the 0.75-quantile 10, the smallest number there is"
else
    echo "changed: PromQL treats NaN in another way now"
    exit 1
fi
