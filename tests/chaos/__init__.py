"""Faults into real processes, a recorded history, and a checker that finds what is wrong.

``make chaos`` starts servers and many processes, which append each call to a history
(``history.py``). It injects faults by a plan that a seed decides, ends everything, and checks the
history. A workload is a module of ``workloads/``; ``workload.py`` describes what it has.
"""
