"""The profiler: what a network's batches take on one GPU of this node, alone and side by side, as samples.

    cells      what to measure            Member(network, batch, sm_percent), Cell(members, clock_mhz); grid, pairs
    journal    what is measured           Journal(path, header): one synced line per cell, for --resume
    messages   what is said to a bench    lines of JSON on its standard input and output
    bench      a process of its own       one network's engine; closed-loop batches, timed around the engine alone
    crew       the benches of a cell      started under MPS with their shares, proven, ended by protocol
    watch      the GPU meanwhile          watts, clock, event reasons, foreign processes
    windows    when a measurement counts  windows until the medians agree -> Measurement
    keeper     after any death            a process that ends what a killed profiler left
    profiler   the whole run              Profiler(...).run(cells) -> Report
    node       on a real node             NVML, MPS and knobs opened for one GPU

    profiler ──JSON lines──▶ bench (share in its environment) ──▶ Engine of agents.serving
       │ └── samples of NVML, rejected windows
       └──pipe──▶ keeper: when the pipe ends, benches, MPS and locked clocks are seen to

A bench runs the same engines as `plimsoll worker`, by the same template, without HTTP: what is measured is what a
worker reports as the execution time of a batch. A share is fixed for the life of a process, so there is one process for
each network and share, and its batch changes while it runs.
"""
