"""The running thing: log, engine, roles, the author's process, doors, worker, command line, test driver and simulator."""
