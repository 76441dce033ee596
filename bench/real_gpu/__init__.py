"""Measuring a real GPU that was lent for an hour: one command per question, resumable, without turning any knob.

`python -m bench.real_gpu STEP --out DIR --budget-s N`; docs/measure.md is the page for those who run it.

    probe     what is there: driver, MPS, GPM; share -> SMs; memory limit and terminate_client tried
    share     does a client at 20 % get 20 % of a compute-bound kernel
    solo      latency, memory, power of networks over shares and batches
    pairs     two networks side by side in the same seconds, also next to training; slowdown against alone
    switch    shadow switches under load by the agent's own device
    agent     the agent's telemetry next to nvidia-smi
    all       these in order

How it is made:

    commands   the command line: which options, what is missing on this machine, which steps run
    run        Run(options, nvml, gpu): what every step gets; `under_mps` for steps without the profiler
    reading    ReadNvml: NVML without its writers, so that no clock, limit or mode can be touched
    tables     Table(path, columns): CSV files with units in their names, a row is kept as soon as it is measured
    source     SOURCE.md next to them: which GPU, which versions, how it was measured
    client     a process that asks CUDA itself (ctypes): SMs seen, memory granted, work on the GPU
    networks   engines for the profiler's bench: torchvision networks, training steps, one kernel, a fake
    bench      a bench of `agents.profiling` with these engines
    profiling  cells of share, solo and pairs through the agent's own profiler
    probe, share, solo, pairs, switch, telemetry: one step each

Every step's `measure(run)` returns whether all of it was measured; what is in its files already is not measured again.
The timed engine sleeps calibrated times, so that every step can be rehearsed without a GPU. Its rows say so in
`gpu_type`.
"""
