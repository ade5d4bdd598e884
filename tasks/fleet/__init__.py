"""A fleet: several worker processes under one parent, ``run_worker --workers N``.

parent    starts children and replaces those that end; one thread, no connection (``parent``)
children  worker processes, each like a bare one with a pipe to the parent and a map of marks
          (``child``, ``tasks.runtime.marks``)
writer    a process that ends at once: hands back the tasks of a child that died (``hand_back``)
"""
