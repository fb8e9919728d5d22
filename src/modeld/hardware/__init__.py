"""Facts about the machine: memory, processes. The only importer of psutil.

Every function answers with a number or None; a process that is gone is an answer, not an error.
"""
