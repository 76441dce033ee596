"""Row `day`: a day of 200 GPUs on a clock that runs faster."""
