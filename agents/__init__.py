"""The node half of Plimsoll: observes GPUs, enforces commands, survives alone.

protocol, device     what goes over the wire; what a node can be told to do
agent                observes, syncs, enforces, governs; `main` and `daemon` start it
enforce, enforcing   the difference between wanted and actual as actions, and carrying them out
gpus                 real GPUs: knobs, mps, mig, nvml below it, workers and tasks on them, router in front
sim, standin         devices without GPUs: simulated, and with real HTTP
serving              `plimsoll worker` and `plimsoll trainer`, programs that templates name
profiling, doctor    what an operator runs on a node
"""
