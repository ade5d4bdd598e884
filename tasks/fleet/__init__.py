"""A fleet: several worker processes under one parent, ``run_worker --workers N``.

parent    starts children and restarts those that exit; one thread, no connection (``parent``)
children  worker processes, each with a channel to the parent and marks in shared memory
          (``child``, ``tasks.runtime.marks``)
writer    a short-lived process that hands back the tasks of a child that died (``hand_back``)
"""
