from __future__ import annotations

import os

# Before any worker starts: two threads on two busy cores wait for each other, and take 4 to 14 times as long.
os.environ["OMP_NUM_THREADS"] = "1"
