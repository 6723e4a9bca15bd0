"""One file a task. What all tasks share stands in `frame/`; every other module here is a task of its own."""
