"""Facts about the machine: its memories, GPUs, cores and processes. The only importer of psutil and pynvml.

`machine` is the form of the facts, `probe` the one way to ask for them; `host` knows RAM, cores and processes
within this process's cgroup, `nvml` the GPUs, `apple` unified memory, `recorded` a recorded driver for tests.
`footprint` is the form of what a model takes. Trouble is an answer (a condition, None, a sentence), never an
error: a process that is gone, a driver that is missing, a GPU that is lost.
"""
