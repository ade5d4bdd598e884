"""Measure speed against PostgreSQL's own: ``make bench``.

    bars         what must be reached
    plain/       the limit: the same work in plain psycopg, by hand
    workloads/   one file a workload, with a function ``run(bench)`` that returns figures
    turn         runs workloads once, in a process of its own, and prints their figures
    peers/       other queues, each in an environment of its own
    __main__     the server, the turns, the table

Machines are shared and differ by a fifth within an hour, so only ratios count: limit, ours and
peers take turns within minutes, a ratio is made of two figures of one turn, and the median over
the turns is judged. Only what is public is measured: ``Task.objects``, ``Lease.objects``,
``manage.py run_worker``.
"""
