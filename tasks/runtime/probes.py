"""Measure tasks where it happens: see ``leasing.runtime.probes``.

running      queue, seconds: how long an attempt had its slot in a worker
"""

from __future__ import annotations

from leasing.runtime.probes import Probe

running = Probe()
