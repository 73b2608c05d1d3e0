"""One app instance: topics checked, roles assembled over a log, threads until told to stop."""
